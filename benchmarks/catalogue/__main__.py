"""Export every entry of the catalogue in each precision, and compare it with PyTorch or sentence-transformers.

Run as `PYTHONPATH=tests python -m benchmarks.catalogue [NAME ...]`; without names it writes families.md and
published.md beside this file. Networks are small, with random weights, laid out as the hub's repositories are; minilm
is the real one. Pretrained models are exported with `--layers 1,-1` and whitened, and compared with PyTorch in float64
by the gate; embedding models as they are published, and compared with `SentenceTransformer.encode`.
"""

import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import click
import huggingface_hub.constants
import numpy as np
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer

from benchmarks.machine import machine
from support.checkpoints import change_config, save_adapter, save_checkpoint
from support.corpus import sentences
from support.published import modules_of, save_published
from support.traces import remembering
from whiten import Encoder, VectorWhitener
from whiten_export.commands.export import export
from whiten_export.sources import pytorch
from whiten_models.catalogue import Entry, catalogue
from whiten_runtime.bundle.parity import Agreement, compare

PRECISIONS = ("fp32", "fp16", "int8")
COMMIT = "1234567890" * 4
WITHOUT_FOLDER = ("specter", "simcse", "unsup-simcse", "angle-bert", "angle-llama", "granite-r2", "granite-small-r2")
WIDENED = 4  # times the width of the tests' networks
TEXTS = (
    *sentences(60)[20:],
    "a",
    "  blanks around  ",
    "今日天気 über den SEE",
    "Wind and rain, words and words. " * 40,
)


@dataclass
class Row:
    """Holds the figures of an entry: by precision, the agreement with the reference or why there is none."""

    name: str
    kind: str
    settings: str
    found: dict[str, Agreement | str] = field(default_factory=dict)

    def cells(self) -> Iterator[str]:
        """Yield the cells of the table."""
        yield from (self.name, self.kind, self.settings)
        for precision in PRECISIONS:
            result = self.found.get(precision, "-")
            yield result if isinstance(result, str) else f"{1 - result.min_cosine:.1e}, {result.max_difference:.1e}"


def repository(cache: Path, hub_id: str) -> Path:
    """Return the folder of a repository in the hub's cache, not yet made."""
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return folder / "snapshots" / COMMIT


def arguments(entry: Entry, cache: Path, corpus: Path) -> list[str]:
    """Put what a pretrained model needs into the hub's cache, and return the arguments of `whiten-export`."""
    whitened = ["--whitening", "pca", "--corpus", str(corpus), "--dim", "32"]
    if entry.source == "vectors":
        np.save(cache / "vectors.npy", np.random.default_rng(0).normal(size=(2000, 128)).astype(np.float32))
        return [entry.name, "--from-vectors", str(cache / "vectors.npy"), "--dim", "32"]
    folder = repository(cache, entry.checkpoint)
    if entry.source == "words":
        write_word_vectors(folder / str(entry.file))
        return [entry.name, *whitened]
    if entry.adapter_of is not None:
        base = repository(cache, entry.adapter_of)
        if not base.exists():
            save_checkpoint(entry.model_type, base, WIDENED)
        save_adapter(base, folder, "AutoModel", "FEATURE_EXTRACTION")
        change_config(folder, base_model_name_or_path=entry.adapter_of)
    elif entry.package is None:
        family = "spanbert" if entry.lowercase is False else entry.model_type
        save_checkpoint(family, folder, WIDENED)
    return [entry.name, "--layers", "1,-1", *whitened]


def write_word_vectors(path: Path) -> None:
    """Write random vectors for the words of the corpus."""
    words = dict.fromkeys(word for sentence in sentences(2000) for word in sentence.lower().split())
    rows = np.random.default_rng(0).normal(size=(len(words), 128))
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        lines = (f"{word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in zip(words, rows, strict=True))
        archive.writestr("words.txt", "".join(lines))


def exported(given: list[str], precision: str, out: Path) -> str | None:
    """Run `whiten-export`; return its error, or None."""
    rest = [] if "--from-vectors" in given else ["--precision", precision]
    result = CliRunner().invoke(export, [*given, *rest, "--out", str(out), "--force"])
    return result.stderr.strip().splitlines()[-1] if result.exit_code else None


def pretrained(entry: Entry, work: Path) -> Row:
    """Measure a pretrained model, whitened, beside PyTorch."""
    row = Row(entry.name, entry.model_type or entry.source, entry.pooling if entry.source != "vectors" else "-")
    corpus = work / "corpus.txt"
    corpus.write_text("\n".join(sentences(800)), "utf-8")
    given = arguments(entry, work, corpus)
    for precision in PRECISIONS if entry.source != "vectors" else PRECISIONS[:1]:
        error = exported(given, precision, work / "bundle")
        if error is not None:
            row.found[precision] = error
            continue
        with (VectorWhitener if entry.source == "vectors" else Encoder)(work / "bundle") as opened:
            row.found[precision] = opened.verify()
    return row


def published(entry: Entry, work: Path) -> Row:
    """Measure an embedding model as published, without a prompt and with each, beside sentence-transformers."""
    row = Row(entry.name, entry.model_type or entry.source, ", ".join(modules_of(entry)))
    folder = save_published(entry.name, work / entry.name)
    peer = SentenceTransformer(str(folder), device="cpu").float().eval()
    for precision in PRECISIONS:
        error = exported([str(folder)], precision, work / "bundle")
        if error is not None:
            row.found[precision] = error
            continue
        with Encoder(work / "bundle") as encoder:
            prompts = dict.fromkeys(("", *encoder.prompts.values()))
            pairs = [(encoder.encode(TEXTS, prompt=p), peer.encode(TEXTS, prompt=p, batch_size=1)) for p in prompts]
        row.found[precision] = compare(*map(np.concatenate, zip(*pairs, strict=True)))
    return row


def has_folder(entry: Entry) -> bool:
    """Return whether the authors publish a folder of sentence-transformers."""
    return entry.as_published and entry.name not in WITHOUT_FOLDER


def table(rows: list[Row]) -> str:
    """Format a table and the line that says how it was made."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "sentence-transformers"))
    head = ["name", "kind", "pooling or modules", *(f"{precision}: 1 - cosine, difference" for precision in PRECISIONS)]
    lines = [head, ["---"] * len(head), *(list(row.cells()) for row in rows)]
    made = f"Made by `python -m benchmarks.catalogue`, one run; {machine()}, {packages}.\n"
    what = "Worst cosine, and worst difference of a coordinate over the vector's norm.\n"
    return "\n".join([made, what, *("| " + " | ".join(line) + " |" for line in lines), ""])


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Measure the entries of these NAMES and print their tables, or all and write the tables."""
    rows: dict[str, list[Row]] = {"families.md": [], "published.md": []}
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        huggingface_hub.constants.HF_HUB_CACHE = folder
        setattr(pytorch, "trace", remembering(pytorch.trace, work / "traces"))  # noqa: B010  the same in each precision
        for entry in catalogue():
            if not names or entry.name in names:
                measure, name = (published, "published.md") if has_folder(entry) else (pretrained, "families.md")
                rows[name].append(measure(entry, work))
                print(" | ".join(rows[name][-1].cells()), file=sys.stderr, flush=True)
    for name, found in rows.items():
        if names:
            print(table(found))
        else:
            Path(__file__).with_name(name).write_text(table(found), "utf-8")


if __name__ == "__main__":
    main()
