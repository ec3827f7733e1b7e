"""Time one text of up to 8,192 tokens, and the memory of it: `python -m benchmarks.long_texts --texts FILE`.

Compares whiten with PyTorch's scaled-dot-product attention on networks of random weights, and with what is named and
installed of OpenVINO and the ONNX backend of sentence-transformers. That backend needs transformers < 4.58,
and so an environment and a command of its own. Each figure is from a process of its own. Writes table.md, or
table-cuda.md with `--device cuda`.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.long_texts.engines import ENGINES, Job
from benchmarks.long_texts.networks import NETWORKS, Network, checkpoint, network_of
from benchmarks.machine import made_by
from benchmarks.workloads import passages, plain_tokenizer
from whiten_runtime.files.rows import read_texts

HERE = Path(__file__).parent
REFERENCE = "PyTorch fp32"
LONG = 4096
"""Number of tokens above which a text is timed once."""


def measure(job: Job, text: str, runs: int) -> dict[str, Any]:
    """Return the median milliseconds, the memory in MB, and the vector of a text, computed in this process.

    A short text is computed before. The memory is the most that the process took, or what the GPU lacks since the
    engine was loaded.
    """
    before = taken_on_gpu() if job.device == "cuda" else 0
    encode = ENGINES[job.name].load(job)
    encode(text[:100])
    times = []
    for _ in range(runs if job.longest <= LONG else 1):
        start = time.perf_counter()
        vector = encode(text)
        times.append(time.perf_counter() - start)
    memory = taken_on_gpu() - before if job.device == "cuda" else peak_memory()
    return {"ms": 1000 * median(times), "mb": memory, "vector": vector.tolist()}


def peak_memory() -> float:
    """Return the MB that this process took at most."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def taken_on_gpu() -> float:
    """Return the MB of the GPU that are taken now."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 1e6


def measured(arguments: argparse.Namespace, job: Job, text: str) -> dict[str, Any] | None:
    """Return what `measure` gives, on a CPU in a process of its own; None, with a line on stderr, where it fails.

    A process fails that wants more memory than there is, or more time than `--seconds`.
    """
    try:
        if arguments.device == "cuda":
            return measure(job, text, arguments.runs)
        return measured_apart(arguments, job, text)
    except Exception as error:
        print(f"{job.engine}, {job.longest} tokens: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        return None
    finally:
        if arguments.device == "cuda":
            free_gpu()


def measured_apart(arguments: argparse.Namespace, job: Job, text: str) -> dict[str, Any]:
    """Return what `measure` gives in a process of its own."""
    line = json.dumps([job.engine, str(job.folder), job.device, job.longest, text, arguments.runs])
    command = [sys.executable, "-m", "benchmarks.long_texts", "--job", "-"]
    try:
        done = subprocess.run(
            command, input=line, capture_output=True, text=True, check=False, timeout=arguments.seconds
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"more than {arguments.seconds} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_job() -> None:
    """Measure what stdin names, and print it as JSON; allocate no more than the memory that is free now."""
    engine, folder, device, longest, text, runs = json.load(sys.stdin)
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(fields["MemAvailable"].split()[0])
    resource.setrlimit(resource.RLIMIT_DATA, (free, free))
    print(json.dumps(measure(Job(engine, Path(folder), device, longest), text, runs)))


def free_gpu() -> None:
    """Give back the memory of engines that are not used any more."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def export(job: Job) -> bool:
    """Write what an engine opens. Return False, with a line on stderr, if the network cannot be exported."""
    write = ENGINES[job.name].export
    try:
        if write:
            write(job)
    except Exception as error:
        print(f"{job.engine}: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        return False
    return True


def installed(engine: str) -> bool:
    """Return whether the packages of an engine are installed; else name them on stderr."""
    missing = ENGINES[Job(engine, Path(), "cpu", 0).name].missing()
    if missing:
        print(f"{engine} is left out: {', '.join(missing)} is not installed", file=sys.stderr)
    return not missing


def cosine(vector: list[float], reference: list[float]) -> float:
    """Return the cosine of two vectors."""
    a, b = np.asarray(vector, np.float64), np.asarray(reference, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def compare(network: Network, arguments: argparse.Namespace, sentences: list[str], folder: Path) -> list[str]:
    """Measure one network, and return the rows of its table."""
    checkpoint(network, folder)
    lengths = [tokens for tokens in arguments.tokens if tokens <= network.tokens]
    exported = {engine for engine in arguments.engines if export(Job(engine, folder, arguments.device, max(lengths)))}
    tokenizer = plain_tokenizer(folder)
    rows = []
    for tokens in lengths:
        (text,) = passages(sentences, tokenizer, [tokens])
        jobs = {engine: Job(engine, folder, arguments.device, tokens) for engine in (*arguments.engines, REFERENCE)}
        results = {
            engine: measured(arguments, jobs[engine], text) if engine in exported else None
            for engine in arguments.engines
        }
        reference = results.get(REFERENCE) or measured(arguments, jobs[REFERENCE], text)
        for engine, result in results.items():
            first = f"| {network.kind} | {network.layers} | {tokens} | {engine} |"
            if result is None:
                rows.append(f"{first} fails | | |")
                continue
            distance = 1 - cosine(result["vector"], reference["vector"]) if reference else float("nan")
            rows.append(f"{first} {result['ms']:.1f} | {result['mb']:.0f} | {distance:.1e} |")
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_texts", description=__doc__)
    parser.add_argument("--texts", help="sentences, one a line")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    names = f"some of {', '.join(NETWORKS)}; KIND:LAYERS for another number of layers"
    parser.add_argument("--networks", default=",".join(NETWORKS), help=names)
    parser.add_argument("--tokens", default="512,2048,8192", type=lambda value: list(map(int, value.split(","))))
    names = f"some of {', '.join(ENGINES)}, each with a precision: 'PyTorch bf16'"
    parser.add_argument(
        "--engines", default=f"whiten fp32,{REFERENCE}", type=lambda value: value.split(","), help=names
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=600, help="most that one process may take, loading included")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        run_job()
        return
    arguments.engines = [engine for engine in arguments.engines if installed(engine)]
    sentences = list(read_texts(arguments.texts))
    networks = [network_of(name) for name in arguments.networks.split(",")]
    rows: list[str] = []
    for network in networks:
        with tempfile.TemporaryDirectory() as name:
            rows += compare(network, arguments, sentences, Path(name))
    fewer = [
        f"{network.kind} has {NETWORKS[network.kind].layers} layers where it is published"
        for network in networks
        if network.layers != NETWORKS[network.kind].layers
    ]
    command = f"long_texts --device {arguments.device} --networks {arguments.networks}"
    runs = f"one text, medians of {arguments.runs} runs, one run above {LONG:,} tokens"
    lines = [
        made_by(command, runs),
        "",
        f"Networks with random weights{''.join(f'; {line}' for line in fewer)}.",
        "",
        "| network | layers | tokens | engine | ms | MB | 1 - cosine to PyTorch fp32 |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    suffix = "-cuda" if arguments.device == "cuda" else ""
    (arguments.out / f"table{suffix}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
