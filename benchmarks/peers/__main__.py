"""Compare whiten with other engines on a CPU: `python -m benchmarks.peers --texts FILE`, with nothing else running.

Makes a virtual environment for each peer, lets each prepare what it loads, then runs all engines in turn, each in a
process of its own, round after round, and prints a table of medians.
"""

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import machine
from benchmarks.workloads import checkpoint, long_passages, mixed_passages, plain_tokenizer, workloads
from whiten_runtime.files.rows import read_texts
from whiten_runtime.ort.processor import available_cpus

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = Path.home() / ".cache" / "whiten-benchmarks"

TORCH = "torch==2.13.0"
ENVIRONMENTS = {
    "whiten": ["-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[export]"],
    "st": [TORCH, "sentence-transformers[onnx]==5.7.*", "transformers<4.58"],
    "openvino": ["openvino==2026.4.*", "nncf", "tokenizers"],
    "fastembed": ["fastembed==0.9.*"],
    "ctranslate2": [TORCH, "ctranslate2==4.8.*", "transformers>=4.57,<5"],
    "model2vec": ["model2vec==0.10.*"],
}
ENGINES = (
    *("whiten-fp32", "whiten-int8", "st-torch", "st-onnx", "st-onnx-int8"),
    *("openvino-fp32", "openvino-bf16", "openvino-int8", "fastembed-fp32", "ctranslate2-fp32", "ctranslate2-int8"),
    *("whiten-layer0", "model2vec-layer0"),
)
"""Engines in the order in which they are prepared: fastembed and OpenVINO load the graph of st-onnx."""

COLUMNS = {"short": "short", "mixed": "mixed", "long": "long", "one": "one, ms", "cold": "start, ms", "rss": "MB"}


def interpreter(engine: str) -> str:
    """Return the Python of an engine's environment, and make the environment if it is not there."""
    name = engine.split("-")[0]
    folder = CACHE / "environments" / name
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        print(f"installing {name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *ENVIRONMENTS[name]], check=True)
        (folder / "done").touch()
    return str(python)


def run(action: str, engine: str, source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `engines.py` in the engine's environment, and return what it measured."""
    under = [] if action == "prepare" else shlex.split(options.under)
    command = [*under, interpreter(engine), str(HERE / "engines.py"), action, engine]
    command += [str(source), str(folder / engine), str(folder / "workloads.json"), str(options.threads)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    environment["MAX_TOKENS"] = str(options.max_tokens)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{engine} failed at {action}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cosines(rows: NDArray[np.float32], exact: NDArray[np.float32]) -> tuple[float, float]:
    """Return the mean and the worst cosine of vectors to those of whiten in float32."""
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(exact, axis=1)
    found = (rows * exact).sum(axis=1, dtype=np.float64) / norms
    return float(found.mean()), float(found.min())


def compare(model: str, engines: list[str], sentences: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Prepare and measure engines on one model, and return their figures: one list of rounds for each column."""
    folder = CACHE / Path(model).name
    folder.mkdir(parents=True, exist_ok=True)
    source = checkpoint(model, folder / "checkpoint")
    tokenizer = plain_tokenizer(source)
    texts = workloads(model, sentences, tokenizer) | {"long": long_passages(model, sentences, tokenizer)}
    texts = {name: texts[name][: max(1, round(options.share * len(texts[name])))] for name in COLUMNS if name in texts}
    calibration = sentences[:200] + mixed_passages(sentences[200:], tokenizer, 100, random.Random(2))
    (folder / "workloads.json").write_text(json.dumps(texts | {"calibration": calibration}))
    figures: dict[str, Any] = {}
    for engine in engines:
        print(f"{model}: preparing {engine}", file=sys.stderr)
        try:
            run("prepare", engine, source, folder, options)
            run("vectors", engine, source, folder, options)
        except SystemExit as error:  # such as CTranslate2, which does not open MPNet
            if engine == "whiten-fp32":  # the vectors that all others are compared with
                raise
            print(f"left out: {error}", file=sys.stderr)
        else:
            figures[engine] = {name: [] for name in COLUMNS}
    for number in range(options.rounds):
        for engine in figures:
            print(f"{model}: round {number + 1}, {engine}", file=sys.stderr)
            for name, value in run("measure", engine, source, folder, options).items():
                figures[engine][name].append(round(value, 3))
    exact = np.load(folder / "whiten-fp32" / "vectors.npy")
    for engine in figures:
        if "layer0" not in engine:
            figures[engine]["cosines"] = cosines(np.load(folder / engine / "vectors.npy"), exact)
    return figures


def table(place: str, model: str, figures: dict[str, Any]) -> str:
    """Return a table of medians in Markdown."""
    rounds = len(next(iter(figures.values()))["short"])
    lines = [f"**{model}**, {place}, medians of {rounds} rounds", ""]
    lines += [f"| engine | {' | '.join(COLUMNS.values())} | cosine | worst |", f"|---|{'---|' * (len(COLUMNS) + 2)}"]
    for engine, found in figures.items():
        cells = [
            f"{median(found[name]):.{1 if name == 'one' or median(found[name]) < 100 else 0}f}" for name in COLUMNS
        ]
        mean, worst = found.get("cosines", ("", ""))
        accuracy = [f"{mean:.4f}", f"{worst:.4f}"] if mean else ["", ""]
        lines.append(f"| {engine} | {' | '.join([*cells, *accuracy])} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--texts", required=True, help="sentences: one a line, or .csv, .tsv, .jsonl, .parquet")
    parser.add_argument("--column")
    parser.add_argument("--models", default="minilm,bert-base", help="these, or directories written by save_pretrained")
    parser.add_argument("--engines", help="those whose names begin so, separated by commas; default all", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--max-tokens", type=int, default=512, help="length to which every engine cuts its texts")
    parser.add_argument("--share", type=float, default=1, help="share of the texts; less than 1 for a trial")
    parser.add_argument("--under", default="", help="command to run engines under, such as one that hides instructions")
    options = parser.parse_args()
    sentences = list(dict.fromkeys(read_texts(options.texts, options.column)))
    chosen = tuple(options.engines.split(","))
    for model in options.models.split(","):
        engines = [name for name in ENGINES if name == "whiten-fp32" or name.startswith(chosen)]
        if model != "minilm":
            engines = [name for name in engines if "layer0" not in name and "fastembed" not in name]
        print(table(machine(), Path(model).name, compare(model, engines, sentences, options)), flush=True)


if __name__ == "__main__":
    main()
