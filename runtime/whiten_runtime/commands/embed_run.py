"""Embed the texts of `whiten embed`, and print their vectors or write them to a file."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec

from whiten_runtime.bundle.manifest import MANIFEST_FILE, VectorPrecision
from whiten_runtime.commands import console
from whiten_runtime.commands.bars import drawn_bar
from whiten_runtime.commands.console import say, warn
from whiten_runtime.commands.vector_options import STDIN
from whiten_runtime.encoder import Encoder
from whiten_runtime.files.resumable import WindowWriter, resuming
from whiten_runtime.files.resume_state import partial_of
from whiten_runtime.files.texts import read_texts
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.write_vectors import Vectors, as_stored, json_row, write_parts, writing_vectors
from whiten_runtime.inference.tuned import Machine
from whiten_runtime.ort.openvino import PLUGIN, plugin_version
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.session import SessionOptions


@dataclass(frozen=True)
class Request:
    """Holds what `whiten embed` was asked for, under the names of its options.

    Attributes:
        texts: texts of the command line.
        source: file of texts, or - for stdin; None for `texts`.
    """

    texts: tuple[str, ...]
    source: str | None
    column: str | None
    out: Path | None
    prompt_name: str | None
    prompt: str | None
    normalize: bool
    truncate_dim: int | None
    precision: VectorPrecision
    batch_size: int | None
    max_characters: int | None
    header: bool
    restart: bool
    as_json: bool


@dataclass(frozen=True)
class _Run:
    """Holds what every text of a run is embedded with."""

    encoder: Encoder
    request: Request
    prompt: str
    metadata: VectorMetadata

    @classmethod
    def of(cls, encoder: Encoder, request: Request) -> "_Run":
        name = request.prompt_name or (encoder.default_prompt_name if request.prompt is None else None)
        metadata = VectorMetadata.of(encoder.manifest, request.normalize, request.truncate_dim, name, request.precision)
        prompt = encoder._embedder.prompts.resolve(request.prompt_name, request.prompt)
        return cls(encoder, request, prompt, metadata)

    def windows(self, texts: Iterable[str], resumed: bool = False) -> Iterator[tuple[list[str], Vectors]]:
        """Yield windows of texts with their vectors as files store them."""
        encoder, asked = self.encoder, self.request
        options = encoder._options(
            asked.batch_size, asked.normalize, asked.truncate_dim, True, self.prompt, asked.max_characters
        )
        first = encoder._engine.schedule.window if resumed else None  # else, a GPU begins with a smaller one
        for window, rows in encoder._encoded_windows(texts, options, asked.precision, first=first):
            yield window, as_stored(rows, self.metadata)

    def made_with(self, out: Path) -> dict[str, str]:
        """Return by name everything but the texts that decides on the bytes of a file of vectors."""
        encoder = self.encoder
        manifest = (encoder.path / MANIFEST_FILE).read_bytes()
        options: SessionOptions = encoder._arguments[1]
        machine = Machine.here()
        described = {name: _in_json(value) for name, value in msgspec.to_builtins(self.metadata).items()}
        schedule = asdict(encoder._engine.schedule)
        return {
            **described,
            "bundle": f"{self.metadata.bundle} ({hashlib.sha256(manifest).hexdigest()[:16]})",
            "prompt": repr(self.prompt),
            "batch size": str(self.request.batch_size or "default"),
            "characters": str(self.request.max_characters or "default"),
            "provider": ", ".join(map(repr, options.providers)),
            "threads": str(options.threads or default_threads()),
            "processor": f"{machine.processor} ({', '.join(machine.features)})",
            "kind of file": f"{out.suffix.lower()}{' with a header' if self.request.header else ''}",
            "versions": ", ".join(f"{name} {number}" for name, number in _versions().items()),
            **{f"batches.{name}": _in_json(value) for name, value in schedule.items()},
        }


def run_embedding(encoder: Encoder, request: Request) -> None:
    """Embed what was asked for, and print or write the vectors.

    Args:
        encoder: the bundle, opened.
        request: what to embed, how, and where to.
    """
    run, out, source, resumed = _Run.of(encoder, request), request.out, request.source, 0
    if out is not None and source not in (None, STDIN):
        count, resumed = _write_resumable(run, str(source), out)
        summary: dict[str, Any] = {"texts": count, "out": str(out)}
    else:
        texts = iter(request.texts) if source is None else read_texts(source, request.column)
        if out is not None:
            summary = {"texts": _write(run, texts, out), "out": str(out)}
        elif request.as_json:
            embeddings = [row.tolist() for _, rows in run.windows(texts) for row in rows]
            summary = {"texts": len(embeddings), "embeddings": embeddings}
        else:
            summary = {"texts": _print(run, texts)}
    if encoder.truncated:
        here = f"{summary['texts'] - resumed}{' texts embedded now' if resumed else ' texts'}"
        warn(f"{encoder.truncated} of {here} were cut to {encoder.max_seq_length} tokens")
    if out is not None:
        say(f"wrote {summary['texts']} vectors of {run.metadata.dimension} dimensions to {out}")
    if request.as_json:
        summary |= {"dimension": run.metadata.dimension, "space": encoder.space, "truncated": encoder.truncated}
        summary |= {} if request.precision == "float32" else {"precision": request.precision}
        summary |= {"resumed": resumed} if resumed else {}
        console.print_json(summary)


def _print(run: _Run, texts: Iterable[str]) -> int:
    if run.request.header or run.metadata.coded:
        click.echo(console.shown_json(run.metadata.to_json().decode()).encode())
    count = 0
    for window, rows in run.windows(texts):
        for text, row in zip(window, rows, strict=True):
            click.echo(console.shown_json(json_row(text, row).decode()).encode())
            count += 1
    return count


def _write(run: _Run, texts: Iterable[str], out: Path) -> int:
    """Write texts that cannot be read again."""
    with writing_vectors(out, run.metadata, run.request.header) as writer:
        return _fill(lambda *window: write_parts(writer, *window), run.windows(texts), 0)


def _write_resumable(run: _Run, source: str, out: Path) -> tuple[int, int]:
    """Return the number of vectors in the file, and how many of them an interrupted run had computed."""
    asked, made_with = run.request, run.made_with(out)

    def read() -> Iterator[str]:
        return read_texts(source, asked.column)

    with resuming(out, run.metadata, asked.header, made_with, read, asked.restart, say) as found:
        writer, texts = found
        with _telling_what_is_kept(writer, out):
            _fill(writer.write, run.windows(texts, bool(writer.resumed)), writer.resumed)
            return writer.finish(), writer.resumed


def _fill(
    write: Callable[[list[str], Vectors], object], windows: Iterator[tuple[list[str], Vectors]], done: int
) -> int:
    with drawn_bar("texts", None, done) as bar:
        for texts, vectors in windows:
            write(texts, vectors)
            bar.update(len(texts))
            done += len(texts)
    return done


@contextmanager
def _telling_what_is_kept(writer: WindowWriter, out: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if writer.saved:
            say(f"the vectors of {writer.saved:,} texts are kept in {partial_of(out)}; the same command goes on there")
        raise


def _in_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _versions() -> dict[str, str]:
    import onnxruntime

    found = {name: version(name) for name in ("whiten", "tokenizers")}
    found["onnxruntime"] = str(onnxruntime.__version__)
    return found if (plugin := plugin_version()) is None else {**found, PLUGIN: plugin}
