"""Time one text of up to 8,192 tokens, and the memory of it: `python -m benchmarks.long_texts --texts FILE`.

Compares whiten with PyTorch's scaled-dot-product attention on networks of random weights. Each figure is from a process
of its own. Writes table.md, or table-cuda.md with `--device cuda`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import made_by
from benchmarks.timing import seconds
from benchmarks.workloads import minilm, passages, plain_tokenizer
from whiten_runtime.files.texts import read_texts

HERE = Path(__file__).parent
POSITIONS = 8192
NETWORKS: dict[str, dict[str, Any]] = {
    "modernbert": {"reference_compile": False},
    "bert": {},
    "qwen3": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_sliding_window": False,
    },
}
"""Networks by their type in transformers, of base size; qwen3 has the layers of Qwen3-Embedding-0.6B."""


def checkpoint(kind: str, layers: int, folder: Path) -> Path:
    """Write a network of random weights with the tokenizer of all-MiniLM-L6-v2, and return its folder."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm(), model_max_length=POSITIONS)
    config = AutoConfig.for_model(
        kind,
        **NETWORKS[kind],
        num_hidden_layers=layers,
        max_position_embeddings=POSITIONS,
        vocab_size=len(tokenizer),
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep", "bos", "eos")},
    )
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load_whiten(bundle: Path, device: str) -> Any:
    """Return a function from a text to its vector, computed by whiten."""
    from whiten import Encoder

    return Encoder(bundle, device=device).encode


def load_pytorch(folder: Path, device: str, precision: str, longest: int) -> Any:
    """Return a function from a text to the mean of the last hidden states, computed by PyTorch."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=longest)
    dtype = torch.float16 if precision == "fp16" else torch.float32
    network: Any = AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()

    @torch.inference_mode()
    def encode(text: str) -> NDArray[np.float32]:
        tokens = tokenizer([text], return_tensors="pt", truncation=True, max_length=longest).to(device)
        states = network(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
        vector: NDArray[np.float32] = states.float().mean(1)[0].cpu().numpy()
        return vector

    return encode


def measure(engine: str, folder: Path, device: str, text: str, longest: int, runs: int) -> dict[str, Any]:
    """Return the median milliseconds, the memory in MB, and the vector of a text, computed in this process.

    The memory is the most that the process took, or what the GPU lacks since the engine was loaded.
    """
    name, precision = engine.split()
    before = taken_on_gpu() if device == "cuda" else 0
    if name == "PyTorch":
        encode = load_pytorch(folder, device, precision, longest)
    else:
        encode = load_whiten(folder / bundle_name(engine), device)
    vector = encode(text)
    milliseconds = 1000 * median(seconds(partial(encode, text)) for _ in range(runs))
    memory = taken_on_gpu() - before if device == "cuda" else peak_memory()
    return {"ms": milliseconds, "mb": memory, "vector": vector.tolist()}


def peak_memory() -> float:
    """Return the MB that this process took at most."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def taken_on_gpu() -> float:
    """Return the MB of the GPU that are taken now."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 1e6


def measured(arguments: argparse.Namespace, engine: str, folder: Path, text: str, tokens: int) -> dict[str, Any] | None:
    """Return what `measure` gives, on a CPU in a process of its own; None, with a line on stderr, where it fails."""
    if arguments.device == "cuda":
        try:
            return measure(engine, folder, arguments.device, text, tokens, arguments.runs)
        except Exception as error:
            print(f"{engine}, {tokens} tokens: {' '.join(str(error).split())[:300]}", file=sys.stderr)
            return None
        finally:
            free_gpu()
    job = json.dumps([engine, str(folder), arguments.device, text, tokens, arguments.runs])
    command = [sys.executable, "-m", "benchmarks.long_texts", "--job", "-"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{engine}, {tokens} tokens: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def free_gpu() -> None:
    """Give back the memory of engines that are not used any more."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def export(folder: Path, longest: int, engine: str) -> None:
    """Export the last layer, not whitened, for one engine of whiten."""
    from whiten_export.pipeline.export import export_bundle
    from whiten_export.pipeline.recipe import Recipe

    name, precision = engine.split()
    choices: dict[str, Any] = {"precision": precision, "target": name.partition(":")[2] or "cpu"}
    recipe = Recipe(str(folder), layers=(-1,), whitening=None, max_length=longest, **choices)
    export_bundle(recipe, folder / bundle_name(engine), replace=True)


def bundle_name(engine: str) -> str:
    """Return the name of the folder of an engine's bundle."""
    return f"bundle-{engine}".replace(" ", "-").replace(":", "-")


def cosine(vector: list[float], reference: list[float]) -> float:
    """Return the cosine of two vectors."""
    a, b = np.asarray(vector, np.float64), np.asarray(reference, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def compare(kind: str, arguments: argparse.Namespace, sentences: list[str], folder: Path) -> list[str]:
    """Measure one network, and return the rows of its table."""
    checkpoint(kind, arguments.layers, folder)
    ours = [engine for engine in arguments.engines if engine.startswith("whiten")]
    for engine in ours:
        export(folder, max(arguments.tokens), engine)
    tokenizer = plain_tokenizer(folder)
    rows = []
    for tokens in arguments.tokens:
        (text,) = passages(sentences, tokenizer, [tokens])
        results = {engine: measured(arguments, engine, folder, text, tokens) for engine in arguments.engines}
        reference = measured(arguments, "PyTorch fp32", folder, text, tokens)
        for engine, result in results.items():
            if result is None:
                rows.append(f"| {kind} | {tokens} | {engine} | fails | | |")
                continue
            distance = 1 - cosine(result["vector"], reference["vector"]) if reference else float("nan")
            rows.append(f"| {kind} | {tokens} | {engine} | {result['ms']:.1f} | {result['mb']:.0f} | {distance:.1e} |")
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_texts", description=__doc__)
    parser.add_argument("--texts", help="sentences, one a line")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--networks", default=",".join(NETWORKS), help=f"some of {', '.join(NETWORKS)}")
    parser.add_argument("--tokens", default="512,2048,8192", type=lambda value: list(map(int, value.split(","))))
    parser.add_argument("--engines", default="whiten fp32,PyTorch fp32", type=lambda value: value.split(","))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        engine, folder, device, text, tokens, runs = json.load(sys.stdin)
        print(json.dumps(measure(engine, Path(folder), device, text, tokens, runs)))
        return
    sentences = list(read_texts(arguments.texts))
    rows: list[str] = []
    for kind in arguments.networks.split(","):
        with tempfile.TemporaryDirectory() as name:
            rows += compare(kind, arguments, sentences, Path(name))
    command = f"long_texts --device {arguments.device} --layers {arguments.layers}"
    lines = [
        made_by(command, f"one text, medians of {arguments.runs} runs"),
        "",
        f"Networks of {arguments.layers} layers with random weights and {POSITIONS} positions.",
        "",
        "| network | tokens | engine | ms | MB | 1 - cosine to PyTorch fp32 |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    suffix = "-cuda" if arguments.device == "cuda" else ""
    (arguments.out / f"table{suffix}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
