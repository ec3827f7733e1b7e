"""Take the measurements, one after the other, with the functions of the benchmarks that ask one question each."""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.all.prepare import PRECISIONS, bench, bundle, command_of, engines
from benchmarks.memory.__main__ import measure as measure_memory
from benchmarks.peers.report import Model
from benchmarks.precision.__main__ import measure as measure_precision
from benchmarks.timing import interleaved, median_ratio, ratios, seconds
from whiten_runtime.bundle.manifest import read_manifest

Found = dict[str, Any]
"""What one measurement gives, as it stands in the JSON file."""

TASKS = ("STS-B", "SICK-R", "STS12", "STS14", "STS15")
"""The tasks of the README's averages."""

_FEWEST_ROUNDS = 3


def export(folder: Path, rounds: int) -> Found:
    """Time `whiten-export minilm --layers 0,1`, the README's first command, and keep the last bundle in `folder`."""
    target = folder / "minilm-l0-l1"
    command = [command_of("whiten-export"), "minilm", "--layers", "0,1", "--out", str(target), "--force"]
    run = partial(subprocess.run, command, check=True, capture_output=True)
    times = [seconds(run) for _ in range(rounds)]
    whitening = read_manifest(target).whitening
    assert whitening is not None
    return {"seconds": median(times), "rounds": times, "sentences": whitening.n_samples}


def sts(target: Path, data: Path) -> Found:
    """Score a bundle on the README's five tasks, without and with its whitening."""
    found: Found = {}
    for source in ("none", "bundle"):
        command = [command_of("whiten"), "eval", "sts", str(target), "--data", str(data), "--tasks", ",".join(TASKS)]
        done = subprocess.run([*command, "--whitening", source, "--json"], check=True, stdout=subprocess.PIPE)
        tasks = {task["name"]: task["mean"] for task in json.loads(done.stdout)["bundles"][0]["tasks"]}
        found[source] = {"tasks": tasks, "average": sum(tasks.values()) / len(tasks)}
    return found


def memory(cache: Path, texts: Path, quick: bool) -> Found:
    """Measure the memory of new processes that embed with float32 and int8 bundles."""
    uses = ("one", "many") if quick else ("one", "many", "long")
    return {
        precision: {use: measure_memory(str(bundle(cache, precision)), str(texts), use) for use in uses}
        for precision in ("fp32", "int8")
    }


def precision(cache: Path, texts: list[str], rounds: int) -> Found:
    """Compare bundles of all precisions with float32: texts per second of one call, and the time of one text."""
    candidates = {name: partial(measure_precision, bundle(cache, name), texts) for name in PRECISIONS}
    found = interleaved(candidates, rounds)
    many = {name: [speed.rate for speed in speeds] for name, speeds in found.items()}
    single = {name: [speed.single for speed in speeds] for name, speeds in found.items()}
    return {
        name: {
            "texts_per_s": median(many[name]),
            "one_text_ms": 1000 * median(single[name]),
            "ratio": median_ratio(many[name], many["fp32"]),
            "ratios": ratios(many[name], many["fp32"]),
            "one_text_ratio": median_ratio(single["fp32"], single[name]),
            "one_text_ratios": ratios(single["fp32"], single[name]),
            "rounds": [list(speed) for speed in found[name]],
            "graph_mb": sum(path.stat().st_size for path in bundle(cache, name).glob("onnx/*")) / 1e6,
        }
        for name in PRECISIONS
    }


def speed(
    model: str,
    cache: Path,
    sentences: list[str],
    share: float,
    rounds: int,
    until: float,
    differences: dict[str, float],
) -> Model:
    """Run the engines of one model in turn, round after round.

    Args:
        model: of `benchmarks.peers`.
        cache: where the engines were prepared.
        sentences: texts to draw from.
        share: share of the texts.
        rounds: rounds at most.
        until: time of `time.monotonic` after which no round begins, once there are three.
        differences: distances from whiten's vectors, from the preparation.
    """
    runner = bench(model, cache, sentences, share)
    found: list[dict[str, dict[str, float]]] = []
    while len(found) < rounds and (len(found) < min(rounds, _FEWEST_ROUNDS) or time.monotonic() < until):
        print(f"{model}: round {len(found) + 1}", file=sys.stderr)
        found += runner.rounds(engines(model), 1)
    return runner.result(differences, found) | {"texts": {name: len(texts) for name, texts in runner.texts.items()}}


def measure(
    models: list[str],
    cache: Path,
    sentences: list[str],
    data: Path | None,
    rounds: int,
    quick: bool,
    minutes: float,
    ready: Found,
) -> Found:
    """Take all measurements.

    Args:
        models: of `benchmarks.peers`.
        cache: where everything was prepared.
        sentences: texts to embed.
        data: folder of the similarity tasks; None to leave them out.
        rounds: rounds at most.
        quick: whether few texts and one round are enough, for a dry run.
        minutes: time after which no further round begins.
        ready: what the preparation gave.
    """
    end = time.monotonic() + 60 * minutes
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder, "texts.txt")
        texts.write_text("".join(f"{sentence}\n" for sentence in sentences), "utf-8")
        found["export"] = export(Path(folder), 1 if quick else 3)
        if data is not None:
            found["sts"] = sts(Path(folder, "minilm-l0-l1"), data)
        found["memory"] = memory(cache, texts, quick)
    found["precision"] = precision(cache, sentences[: 50 if quick else len(sentences)], 1 if quick else 3)
    found["speed"] = {}
    for done, model in enumerate(models):
        now = time.monotonic()
        until = now + (end - now) / (len(models) - done)
        found["speed"][model] = speed(
            model,
            cache,
            sentences,
            0.02 if quick else 1,
            1 if quick else rounds,
            until,
            ready["differences"][model],
        )
    return found
