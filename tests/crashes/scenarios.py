"""Commands and functions that write files, for the crash suite: each in a folder of its own, which is made anew."""

import io
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from crashes.bundle_scenarios import BUNDLE, signing, text_models
from crashes.scenario import (
    DATA,
    Scenario,
    first,
    opens_bundle,
    opens_image,
    opens_json,
    opens_statistics,
    opens_vectors,
    whiten,
)

VECTORS = DATA / "bundle-v1-vectors"


def embed(kind: str, *options: object) -> Callable[[Path], object]:
    return whiten("embed", BUNDLE, "--input", "FOLDER/texts.txt", "--out", f"FOLDER/v.{kind}", "--threads", 1, *options)


def embed_stdin(kind: str) -> Callable[[Path], object]:
    def run(folder: Path) -> object:
        sys.stdin = SimpleNamespace(buffer=io.BytesIO((folder / "texts.txt").read_bytes()))
        return whiten("embed", BUNDLE, "-", "--out", f"FOLDER/v.{kind}", "--threads", 1)(folder)

    return run


def from_vectors(*options: object) -> Callable[[Path], object]:
    return whiten("export", "api", "--from-vectors", "FOLDER/rows.npy", "--out", "FOLDER/b", *options)


@contextmanager
def no_exchange() -> Iterator[None]:
    from whiten_export.writing import staging

    staging.exchange = lambda one, other: False
    yield


def in_two_steps(folder: Path) -> object:
    with no_exchange():
        return from_vectors("--force", "--dim", 7)(folder)


def fit(*options: object) -> Callable[[Path], object]:
    corpus = ("--corpus", "FOLDER/texts.txt", "--threads", 1)
    return whiten("fit", BUNDLE, *corpus, "-o", "FOLDER/s.safetensors", *options)


def refit(*options: object) -> Callable[[Path], object]:
    stats = ("--stats", "FOLDER/s.safetensors", "--whitening", "pca", "--dim", 4, "--threads", 1)
    return whiten("refit", BUNDLE, *stats, "--out", "FOLDER/b", *options)


def merge(folder: Path) -> object:
    part = folder / "s.safetensors"
    return whiten("merge", part, part, "-o", "FOLDER/m.safetensors")(folder)


class _Embedder:
    def __enter__(self) -> "_Embedder":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def whole(self, name: str) -> str:
        return name

    def embed(self, part: list[str], options: str, advance: Callable[[int], object]) -> Any:
        advance(len(part))
        return np.array([[len(text), hash_of(text), 1, 2] for text in part], np.float32)


def hash_of(text: str) -> int:
    return sum(text.encode())


def store(folder: Path) -> None:
    """Store vectors of all layers, as a sweep does."""
    from whiten_evaluation.sweep.store import embed_layers

    graph: Any = SimpleNamespace(
        poolings=("mean",),
        layers=(0, 1),
        width=2,
        embedder=lambda options: _Embedder(),
        split=lambda rows: rows.reshape(len(rows), 1, 2, 2).transpose(1, 2, 0, 3),
    )
    texts = (folder / "texts.txt").read_text("utf-8").splitlines() * 2
    texts = [f"{number} {text}" for number, text in enumerate(texts)]
    embed_layers(graph, texts, folder / "store", Any, lambda count: None, part_texts=16)


def embed_many(folder: Path) -> None:
    """Plan and embed shards of 8 texts, in this process."""
    from whiten_scale.inputs import ColumnChoice
    from whiten_scale.places import Folder
    from whiten_scale.plan import plan_job
    from whiten_scale.shard import VectorChoice
    from whiten_scale.workers import Work, open_work

    choice, out = VectorChoice(), Folder(str(folder / "many"))
    job = plan_job(out, "embed", BUNDLE, choice.shown(), [str(folder / "texts.txt")], ColumnChoice(), 8)
    do = open_work(Work(job=job, bundle=str(BUNDLE), out=out.url, vectors=choice))
    for item in range(len(job.shards)):
        do(item, lambda count: None)


def opens_shards(path: Path) -> None:
    (opens_json if path.suffix == ".json" else opens_vectors)(path)


def save_whitening(folder: Path) -> None:
    from whiten_whitening.estimator import Whitening

    Whitening().fit(np.load(folder / "rows.npy")).save(folder / "w.safetensors")


def save_codes(bits: int) -> Callable[[Path], object]:
    def run(folder: Path) -> None:
        from whiten_whitening.codes.coder import Coder

        rows = np.load(folder / "rows.npy")
        coder = Coder.fit(rows, bits=bits)
        coder.save(folder / "coder.safetensors")
        coder.encode(rows).save(folder / "codes.safetensors")

    return run


def opens_codes(path: Path) -> None:
    from whiten_whitening.codes.coded import Codes
    from whiten_whitening.codes.coder import Coder

    (Coder if path.name.startswith("coder") else Codes).load(path)  # type: ignore[attr-defined]


def opens_whitening(path: Path) -> None:
    from whiten_whitening.estimator import Whitening

    Whitening.load(path)


def write_tuned(threads: int) -> Callable[[Path], object]:
    def run(folder: Path) -> None:
        from whiten_runtime.inference.tuned import Choice, Machine, Setting, write_choice

        setting = Setting(provider="cpu", threads=threads, token_budget=256)
        machine = Machine(processor="p", features=(), cpus=1)
        made = {"format": 1, "bundle": "b", "graph": "0", "machine": machine, "versions": {}, "setting": setting}
        write_choice(folder / "b", Choice(**made, measured=()))

    return run


def draw(text: str) -> Callable[[Path], object]:
    def run(folder: Path) -> None:
        from whiten_evaluation.commands.output import write_files

        write_files(folder / "figures", {"a.svg": f"<svg {text}>".encode(), "b.svg": f"<svg {text}>".encode()})

    return run


def old_bundle(folder: Path) -> None:
    shutil.copytree(BUNDLE, folder / "b")


def table(folder: Path) -> None:
    assert folder.is_dir()


def _all() -> Iterator[Scenario]:
    for kind in ("npy", "jsonl", "parquet"):
        yield Scenario(f"embed --out v.{kind}", embed(kind), (f"v.{kind}",), opens_vectors, first())
        old = first(embed(kind, "--truncate-dim", 8))
        yield Scenario(f"embed --out v.{kind}, over another", embed(kind), (f"v.{kind}",), opens_vectors, old)
    old = first(embed("npy", "--truncate-dim", 8))
    yield Scenario("embed - --out v.npy, over another", embed_stdin("npy"), ("v.npy",), opens_vectors, old)
    transform = whiten("transform", VECTORS, "--input", "FOLDER/w.npy", "--out", "FOLDER/v.npy")
    wide = first(make_wide, embed("npy"))
    yield Scenario("transform --out v.npy, over another", transform, ("v.npy",), opens_vectors, wide)
    yield Scenario("export --from-vectors", from_vectors(), ("b",), opens_bundle, first(), replaces=False)
    old = first(from_vectors())
    yield Scenario("export --from-vectors --force", from_vectors("--force", "--dim", 7), ("b",), opens_bundle, old)
    yield Scenario("export --force, no exchange", in_two_steps, ("b",), opens_bundle, old, in_two_steps=True)
    yield Scenario("fit", fit(), ("s.safetensors",), opens_statistics, first())
    old = first(fit("--max-sentences", 12))
    yield Scenario("fit, over another", fit(), ("s.safetensors",), opens_statistics, old)
    yield Scenario("merge", merge, ("m.safetensors",), opens_statistics, first(fit()))
    yield Scenario("refit --stats", refit(), ("b",), opens_bundle, first(fit()), replaces=False)
    yield Scenario("refit --stats --force", refit("--force"), ("b",), opens_bundle, first(fit(), old_bundle))
    shards = ("many/_plan.json", *(f"many/part-{number:06}.parquet" for number in range(3)))
    yield Scenario(
        "embed-many's plan and shards", embed_many, shards, opens_shards, first(), samples=12, needs="fsspec"
    )
    yield Scenario("sweep's store", store, ("store",), table, first())
    yield Scenario("Whitening.save", save_whitening, ("w.safetensors",), opens_whitening, first())
    coded = ("coder.safetensors", "codes.safetensors")
    yield Scenario("Coder.save, Codes.save", save_codes(8), coded, opens_codes, first(save_codes(1)))
    yield Scenario("tune's file", write_tuned(2), ("b.tuned.json",), opens_json, first(write_tuned(1)))
    figures = ("figures/a.svg", "figures/b.svg")
    yield Scenario("eval's figures", draw("new"), figures, opens_image, first(draw("old")))


def make_wide(folder: Path) -> None:
    from whiten_runtime.bundle.manifest import read_manifest

    width = read_manifest(VECTORS).source.hidden_size
    np.save(folder / "w.npy", np.random.default_rng(1).normal(size=(200, width)).astype(np.float32))


SCENARIOS = {scenario.name: scenario for scenario in (*_all(), *text_models(), *signing())}
