"""Compare whiten on a GPU with PyTorch and sentence-transformers: `python -m benchmarks.gpu --texts FILE`.

Needs one environment with torch and onnxruntime-gpu for the same CUDA: pip install -c constraints.txt -e
'.[test-gpu]'. Checks first that all engines give PyTorch's float32 vectors, then measures all in turn, round after
round, and writes table.md beside this file, with the card's name. `--device cpu --out DIR` tries this
script where there is no GPU; its figures mean nothing.
"""

import argparse
import json
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.rivals import Rival, Torch, best_size, rate, sentence_transformers, whiten
from benchmarks.machine import machine
from benchmarks.timing import interleaved, median_ratio, seconds_each
from benchmarks.workloads import checkpoint, mixed_passages, passages, plain_tokenizer
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.rows import read_texts
from whiten_runtime.inference.tokenizer import Tokenizer

HERE = Path(__file__).parent
LONGEST = 512
MODELS = ("minilm", "bert-base")
LEAST_COSINE = 0.999
OURS = "whiten fp16"


def exported(folder: Path, source: Path, precision: str) -> Path:
    """Export the last layer, not whitened, as the others compute it."""
    recipe = Recipe(
        str(source),
        layers=(-1,),
        whitening=None,
        max_length=LONGEST,
        precision=precision,  # type: ignore[arg-type]
        target="cuda",
    )
    return export_bundle(recipe, folder / precision, replace=True).path


def texts_for(sentences: list[str], tokenizer: Any, count: int) -> dict[str, list[str]]:
    """Return texts by workload: as they come, of 10 to 250 tokens, of 512 tokens, and those that come alone."""
    generator = random.Random(0)
    shuffled = generator.choices(sentences, k=count)
    return {
        "short": shuffled,
        "mixed": mixed_passages(sentences, tokenizer, max(8, count // 4), generator),
        "long": passages(sentences, tokenizer, [LONGEST] * max(8, count // 8)),
        "one": shuffled[: max(8, min(300, count))],
    }


def worst_cosine(vectors: np.ndarray, wanted: np.ndarray) -> float:
    """Return the lowest cosine between two engines' vectors of a text."""
    vectors, wanted = vectors.astype(np.float64), wanted.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted, axis=1)
    return float(((vectors * wanted).sum(axis=1) / norms).min())


def measure(model: str, sentences: list[str], arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all figures of a model."""
    device, half = arguments.device, torch.float16 if arguments.device == "cuda" else torch.bfloat16
    source = checkpoint(model, folder / "checkpoint")
    texts = texts_for(sentences, plain_tokenizer(source), arguments.count)
    bundles = {precision: exported(folder, source, precision) for precision in ("fp32", "fp16")}
    tokenizer = Tokenizer(bundles["fp32"] / "tokenizer.json", LONGEST)
    rivals: dict[str, Rival] = {}
    for precision, bundle in bundles.items():
        rivals[f"whiten {precision}"] = whiten(bundle, device)
    graphs = whiten(bundles["fp16"], device, cuda_graphs=device == "cuda")
    rivals["PyTorch SDPA fp16"] = Torch(source, tokenizer, device, half).rival()
    if not arguments.no_compile:
        compiled = Torch(source, tokenizer, device, half, True).rival()
        try:
            compiled.one(texts["one"][0])
            rivals["PyTorch SDPA fp16, torch.compile"] = compiled
        except Exception as error:  # it needs a compiler, among other things
            print(f"without torch.compile: {' '.join(str(error).split())[:300]}", file=sys.stderr)
    rivals["sentence-transformers fp16"] = sentence_transformers(source, device, half, LONGEST)

    probes = texts["short"][:512] + texts["mixed"][:64]
    wanted = Torch(source, tokenizer, device, torch.float32).many(probes, 4096)
    cosines = {name: worst_cosine(rival.many(probes, rival.sizes[0]), wanted) for name, rival in rivals.items()}
    replayed = np.stack([graphs.one(text) for text in probes])
    cosines["whiten fp16, CUDA graphs"] = worst_cosine(replayed, wanted)
    print(json.dumps({model: cosines}), file=sys.stderr)
    for name, cosine in cosines.items():
        if not cosine >= LEAST_COSINE:
            raise SystemExit(f"{name} does not compute what PyTorch does in float32: worst cosine {cosine}")
    workloads = {name: texts[name] for name in ("short", "mixed", "long")}
    sizes = {name: {kind: best_size(rival, part) for kind, part in workloads.items()} for name, rival in rivals.items()}

    def speeds(rival: Rival, of_rival: dict[str, int]) -> dict[str, float]:
        figures = {kind: rate(rival.many, workloads[kind], size) for kind, size in of_rival.items()}
        return figures | {"one": 1000 * median(seconds_each(rival.one, texts["one"]))}

    candidates = {name: partial(speeds, rival, sizes[name]) for name, rival in rivals.items()}
    candidates["whiten fp16, CUDA graphs"] = partial(speeds, graphs, {})
    found = interleaved(candidates, arguments.rounds)
    rounds = [dict(zip(found, figures, strict=True)) for figures in zip(*found.values(), strict=True)]
    lengths = {kind: float(np.mean([len(row) for row in tokenizer.tokenize(part)])) for kind, part in workloads.items()}
    return {"cosines": cosines, "sizes": sizes, "rounds": rounds, "tokens": lengths}


def table(results: dict[str, Any]) -> str:
    """Return all figures as Markdown."""
    lines = [f"# On a GPU: {results['card']}", ""]
    lines += [
        "Made by `python -m benchmarks.gpu`. Medians of interleaved rounds; every engine with its best size of batches."
    ]
    lines += [f"Processor: {results['machine']}.", ""]
    for model, figures in results["models"].items():
        rounds, kinds = figures["rounds"], list(figures["tokens"])
        heads = [f"{kind} ({tokens:.0f} tokens), texts/s" for kind, tokens in figures["tokens"].items()]
        lines += [f"## {model}, {len(rounds)} rounds", ""]
        lines += [
            f"| | {' | '.join(heads)} | one text, ms | 1 - worst cosine to fp32 |",
            "|---" * (len(heads) + 3) + "|",
        ]
        for name, first in rounds[0].items():
            cells = [f"{median(found[name][kind] for found in rounds):.0f}" if kind in first else "" for kind in kinds]
            alone = median(found[name]["one"] for found in rounds)
            lines += [f"| {name} | {' | '.join(cells)} | {alone:.2f} | {1 - figures['cosines'][name]:.1e} |"]
        others = [name for name in rounds[0] if not name.startswith("whiten")]
        rates = {(name, kind): [found[name][kind] for found in rounds] for name in (OURS, *others) for kind in kinds}
        best = {kind: min(median_ratio(rates[OURS, kind], rates[name, kind]) for name in others) for kind in kinds}
        ratios = [f"{kind} {ratio:.2f}" for kind, ratio in best.items()]
        lines += ["", f"{OURS} against the best of the others, median of the rounds' ratios: {', '.join(ratios)}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--texts", help="sentences, one a line, or .csv, .tsv, .jsonl, .parquet; default: built in")
    parser.add_argument("--column")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--count", type=int, default=8192, help="short texts; a quarter mixed, an eighth long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes minutes")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    if arguments.device == "cpu" and arguments.out == HERE:
        parser.error("--device cpu is a trial of this script; give it --out DIR")
    if unknown := set(arguments.models.split(",")) - set(MODELS):
        parser.error(f"--models has {', '.join(sorted(unknown))}; wanted some of {', '.join(MODELS)}")
    if min(arguments.count, arguments.rounds) < 1:
        parser.error("--count and --rounds are at least 1")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; whiten doctor --device cuda may say why")
    torch.backends.cuda.matmul.allow_tf32 = False
    corpus = Corpus((BUILTIN_CORPUS,), None, None) if arguments.texts is None else None
    sentences = list(dict.fromkeys(corpus or read_texts(arguments.texts, arguments.column)))
    if not sentences:
        parser.error(f"--texts {arguments.texts} holds no text")
    results: dict[str, Any] = {
        "card": torch.cuda.get_device_name() if arguments.device == "cuda" else "no GPU: a trial of the script",
        "machine": machine(),
        "models": {},
    }
    for model in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            results["models"][model] = measure(model, sentences, arguments, Path(folder))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text(table(results))


if __name__ == "__main__":
    main()
