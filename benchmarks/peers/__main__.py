"""Compare whiten with other engines: `python -m benchmarks.peers --texts FILE`, with nothing else running.

Makes a virtual environment for each peer, prepares what each engine loads, checks that the float32 engines give the
same vectors, then runs all engines in turn, each in a process of its own, round after round. Writes a table (table.md),
a chart (chart.png) and all figures (figures.json), in which other machines and models keep the figures that they had.
With --without-amx on a processor with AMX, all engines are measured as on one with AVX-512 VNNI alone.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.machine import kind, machine
from benchmarks.peers.engines import MAX_TOKENS, NEEDS
from benchmarks.peers.report import WORKLOADS, Model, write_report
from benchmarks.timing import interleaved, seconds
from benchmarks.workloads import checkpoint, long_passages, plain_tokenizer, workloads
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.texts import read_texts
from whiten_runtime.ort.processor import BF16, available_cpus, processor

Figures = dict[str, float]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

TORCH = "torch==2.13.0"
ENVIRONMENTS = {
    "whiten": ["-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[export,openvino]"],
    "st": [TORCH, "sentence-transformers[onnx]==5.7.*", "transformers<4.58"],
    "openvino": ["openvino==2026.4.*", "tokenizers"],
    "fastembed": ["fastembed==0.9.*"],
    "ctranslate2": [TORCH, "ctranslate2==4.8.*", "transformers>=4.57,<5"],
    "model2vec": ["model2vec==0.10.*"],
}
ENGINES = {
    "minilm": (
        *("whiten-fp32", "whiten-int8", "whiten-bf16", "st-torch", "st-onnx", "st-onnx-int8"),
        *("openvino-fp32", "openvino-bf16", "fastembed-fp32", "ctranslate2-fp32", "ctranslate2-int8"),
        *("whiten-layer0", "model2vec-layer0"),
    ),
    "bert-base": (
        *("whiten-fp32", "whiten-int8", "whiten-bf16", "st-torch", "st-onnx", "st-onnx-int8"),
        *("openvino-fp32", "openvino-bf16", "ctranslate2-fp32", "ctranslate2-int8"),
    ),
}
COLD = ("whiten-fp32", "whiten-int8", "fastembed-fp32")
"""Engines whose cold start is measured: from the start of a process to its first vector."""

_AGREED = 1e-3


def python(cache: Path, engine: str) -> str:
    """Return the interpreter of an engine's environment, and make the environment if it is not there."""
    name = engine.split("-")[0]
    folder = cache / "environments" / name
    binary = folder / "bin" / "python"
    if not (folder / "done").exists():
        print(f"installing {name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([binary, "-m", "pip", "install", "-q", *ENVIRONMENTS[name]], check=True)
        # optimum-intel brings the torchvision of another torch, which then cannot be imported.
        subprocess.run([binary, "-m", "pip", "uninstall", "-q", "-y", "torchvision"], check=True, capture_output=True)
        (folder / "done").touch()
    return str(binary)


def engines_of(model: str, chosen: tuple[str, ...] = ("",)) -> list[str]:
    """Return the engines to measure, whiten-fp32 first, without bfloat16 where the processor does not have it.

    Args:
        model: of `ENGINES`.
        chosen: beginnings of the others' names.
    """
    engines = ["whiten-fp32", *(name for name in ENGINES[model][1:] if name.startswith(chosen))]
    return [name for name in engines if BF16 in processor().features or not name.endswith("bf16")]


def with_needed(engines: list[str]) -> list[str]:
    """Return engines after those whose graphs they load: in the order in which to prepare them."""
    needed = (NEEDS[engine.split("-")[0]] for engine in engines if engine.split("-")[0] in NEEDS)
    return list(dict.fromkeys((*needed, *engines)))


def place(refused: bool = False) -> str:
    """Return the processor and its kind, the name of a machine in figures.json.

    Args:
        refused: whether AMX was refused to the engines.
    """
    return f"{processor().model or 'processor'}, {kind(refused)}{', AMX refused' if refused else ''}"


class Bench:
    """Run the engines on one model and one set of texts.

    Args:
        model: of `ENGINES`.
        cache: folder for checkpoints and what engines load.
        sentences: texts to draw from.
        threads: threads of each engine.
        interpreter: gives the Python of an engine's environment.
        without_amx: whether to refuse AMX to all engines.
        share: share of the texts.
        chosen: workloads; single texts are needed for the cold start.
    """

    def __init__(
        self,
        model: str,
        cache: Path,
        sentences: list[str],
        threads: int,
        interpreter: Callable[[str], str],
        without_amx: bool = False,
        share: float = 1,
        chosen: Sequence[str] = tuple(WORKLOADS),
    ) -> None:
        self.model, self.threads, self.python = model, threads, interpreter
        self.refused = without_amx and "AMX" in processor().features
        self.wrapper = ["-m", "benchmarks.peers.without_amx"] if without_amx else []
        self.folder = cache / model
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = checkpoint(model, self.folder / "checkpoint")
        tokenizer = plain_tokenizer(self.checkpoint)
        texts = workloads(model, sentences, tokenizer)
        self.texts = {name: texts[name] for name in ("short", "mixed")}
        self.texts |= {"long": long_passages(model, sentences, tokenizer), "one": texts["one"]}
        self.texts = {name: self.texts[name][: max(1, round(share * len(self.texts[name])))] for name in chosen}
        self.tokens = {
            name: float(np.mean([min(len(row.ids), MAX_TOKENS) for row in tokenizer.encode_batch(texts)]))
            for name, texts in self.texts.items()
        }
        (self.folder / "workloads.json").write_text(json.dumps(self.texts))

    def worker(self, action: str, engine: str, *more: str) -> str:
        """Run `worker.py` in the engine's environment, and return what it printed."""
        command = [self.python(engine), *self.wrapper, "-m", "benchmarks.peers.worker", action, engine]
        command += [
            str(self.checkpoint),
            str(self.folder / engine),
            str(self.folder / "workloads.json"),
            str(self.threads),
            *more,
        ]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit(f"{engine} failed at {action}:\n{done.stderr[-3000:]}")
        return done.stdout

    def agree(self, engines: list[str]) -> dict[str, float]:
        """Return each engine's worst distance from the vectors of whiten-fp32, over their norm.

        Raises:
            SystemExit: a float32 engine gives other vectors.
        """
        vectors = {}
        for engine in engines:
            file = self.folder / f"{engine}.npy"
            self.worker("vectors", engine, str(file))
            vectors[engine] = np.load(file)
        ours = vectors["whiten-fp32"]
        norms = np.linalg.norm(ours, axis=1)
        worst = {
            engine: float((np.linalg.norm(rows - ours, axis=1) / norms).max())
            for engine, rows in vectors.items()
            if not engine.endswith("layer0")
        }
        for engine, difference in worst.items():
            if not engine.endswith(("int8", "bf16")) and difference > _AGREED:
                raise SystemExit(f"{engine} does not compute what whiten does: {difference:.1e} of the norm away")
        return worst

    def measure(self, engine: str) -> Figures:
        """Return one round's figures of an engine."""
        print(f"{self.model}: measuring {engine}", file=sys.stderr)
        figures: Figures = json.loads(self.worker("measure", engine).splitlines()[-1])
        if engine in COLD:
            figures["cold_s"] = seconds(partial(self.worker, "cold", engine))
        return figures

    def peak(self) -> Figures:
        """Return one round's peak of the processor, by precision."""
        command = [self.python("whiten"), *self.wrapper, "-m", "benchmarks.peers.peak", str(self.threads)]
        figures: Figures = json.loads(subprocess.run(command, capture_output=True, cwd=ROOT, check=True).stdout)
        return figures

    def rounds(self, engines: list[str], count: int) -> list[dict[str, Figures]]:
        """Return figures by engine, and those of "peak", for each of several interleaved rounds."""
        candidates = {engine: partial(self.measure, engine) for engine in engines} | {"peak": self.peak}
        found = interleaved(candidates, count)
        return [dict(zip(found, figures, strict=True)) for figures in zip(*found.values(), strict=True)]

    def result(self, differences: dict[str, float], rounds: list[dict[str, Figures]]) -> Model:
        """Return what figures.json keeps of a run.

        Args:
            differences: of `agree`.
            rounds: of `rounds`.
        """
        amx = "AMX was refused" if self.refused else "AMX was used" if kind() == "amx" else "no AMX"
        config = json.loads((self.checkpoint / "config.json").read_text())
        return {
            "machine": f"{machine()}; {amx}",
            "threads": self.threads,
            "tokens": self.tokens,
            "config": {key: config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")},
            "differences": differences,
            "rounds": rounds,
        }


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--texts", help="sentences, one a line, or .csv, .tsv, .jsonl, .parquet")
    parser.add_argument("--column")
    parser.add_argument("--models", default=",".join(ENGINES))
    parser.add_argument("--engines", help="those whose names begin so, separated by commas; default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--share", type=float, default=1, help="share of the texts; less than 1 for a dry run")
    parser.add_argument("--without-amx", action="store_true", help="refuse AMX to all engines")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "whiten-benchmarks")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    if arguments.texts is None:
        sentences = list(Corpus((BUILTIN_CORPUS,), None, None))
    else:
        sentences = list(dict.fromkeys(read_texts(arguments.texts, arguments.column)))
    file = arguments.out / "figures.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    refused = arguments.without_amx and "AMX" in processor().features
    results.setdefault(place(refused), {})
    cache = arguments.cache.resolve()
    for model in arguments.models.split(","):
        engines = engines_of(model, tuple((arguments.engines or "").split(",")))
        bench = Bench(
            model,
            cache,
            sentences,
            arguments.threads,
            partial(python, cache),
            arguments.without_amx,
            arguments.share,
        )
        for engine in with_needed(engines):
            print(f"{model}: preparing {engine}", file=sys.stderr)
            bench.worker("prepare", engine)
        differences = bench.agree(engines)
        rounds = bench.rounds(engines, arguments.rounds)
        results[place(refused)][model] = bench.result(differences, rounds)
        file.write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, arguments.out)


if __name__ == "__main__":
    main()
