"""Implement `whiten embed`: embed texts, and print their vectors or write them to a file."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from whiten_runtime.bundle.manifest import MANIFEST_FILE, VectorPrecision
from whiten_runtime.commands import console
from whiten_runtime.commands.bars import drawn_bar
from whiten_runtime.commands.console import (
    bundle_argument,
    given_text,
    json_option,
    one_line_errors,
    provider_option,
    quiet_option,
    say,
    threads_option,
    warn,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.commands.vector_options import check_other_file, force_option, header_option
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError
from whiten_runtime.files.resumable import WindowWriter, resuming
from whiten_runtime.files.resume_state import partial_of
from whiten_runtime.files.texts import read_texts
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.vector_output import check_output
from whiten_runtime.files.write_vectors import Vectors, as_stored, json_row, write_parts, writing_vectors
from whiten_runtime.inference.tuned import Machine
from whiten_runtime.ort.openvino import PLUGIN, plugin_version
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.providers import Provider
from whiten_runtime.ort.session import SessionOptions

_STDIN = "-"


@dataclass(frozen=True)
class _Run:
    """Holds what every text of a run is embedded with."""

    encoder: Encoder
    prompt: str
    batch_size: int | None
    max_characters: int | None
    normalize: bool
    truncate_dim: int | None
    precision: VectorPrecision
    metadata: VectorMetadata

    def windows(self, texts: Iterable[str], resumed: bool = False) -> Iterator[tuple[list[str], Vectors]]:
        """Yield windows of texts with their vectors as files store them."""
        encoder = self.encoder
        options = encoder._options(
            self.batch_size, self.normalize, self.truncate_dim, True, self.prompt, self.max_characters
        )
        first = encoder._engine.schedule.window if resumed else None  # else, a GPU begins with a smaller one
        for window, rows in encoder._encoded_windows(texts, options, self.precision, first=first):
            yield window, as_stored(rows, self.metadata)

    def made_with(self, out: Path, header: bool) -> dict[str, str]:
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
            "batch size": str(self.batch_size or "default"),
            "characters": str(self.max_characters or "default"),
            "provider": ", ".join(map(repr, options.providers)),
            "threads": str(options.threads or default_threads()),
            "processor": f"{machine.processor} ({', '.join(machine.features)})",
            "kind of file": f"{out.suffix.lower()}{' with a header' if header else ''}",
            "versions": ", ".join(f"{name} {number}" for name, number in _versions().items()),
            **{f"batches.{name}": _in_json(value) for name, value in schedule.items()},
        }


@command(
    section="Embed",
    examples=(
        'whiten embed bundles/minilm-l0-l1 "A text." "Another text."',
        "whiten embed bundles/minilm-l0-l1 --input texts.txt --out vectors.npy",
    ),
)
@bundle_argument
@click.argument("text", nargs=-1, callback=given_text)
@heading("Input")
@option(
    "--input",
    "input_file",
    metavar="FILE",
    help="Texts: .txt, .jsonl, .csv, .tsv or .parquet. Each may end in .gz too; - is stdin.",
)
@option("--column", metavar="COLUMN", help="Column or key of the text in --input.")
@option(
    "--prompt-name",
    metavar="NAME",
    callback=given_text,
    help="Prompt of the bundle, such as query. Without it, the bundle's default prompt is applied, if it has one.",
)
@option(
    "--prompt",
    metavar="TEXT",
    callback=given_text,
    help='Prompt before each text; "" for none. With "{text}" in it, it is put around the text.',
)
@option(
    "--max-characters",
    type=click.IntRange(min=1),
    metavar="N",
    rare=True,
    help="Cut longer texts before they are tokenised. [default: 250 a token]",
)
@heading("Vectors")
@option("--normalize", is_flag=True, help="Divide each vector by its L2 norm.")
@option("--truncate-dim", type=click.IntRange(min=1), metavar="K", help="Keep the first K coordinates only.")
@option(
    "--precision",
    type=click.Choice(get_args(VectorPrecision)),
    metavar="|".join(get_args(VectorPrecision)),
    default="float32",
    show_default=True,
    help="How a coordinate is stored. In 8 bits (int8, uint8), or as its sign in one bit (binary, ubinary): lines of "
    "JSON then begin with a header.",
)
@heading("Output")
@option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write vectors to .npy, .parquet or .jsonl."
)
@header_option
@option("--restart", is_flag=True, help="Begin anew, whatever an interrupted run left.")
@force_option
@json_option
@quiet_option
@heading("Execution")
@threads_option
@provider_option
@option("--batch-size", type=click.IntRange(min=1), metavar="N", rare=True, help="Texts per run at most.")
@option("--tuned", is_flag=True, help="Run as whiten tune chose for this machine.")
@option("--verify", is_flag=True, help="First prove parity, as whiten verify does.")
@one_line_errors
def embed(
    bundle: str,
    text: tuple[str, ...],
    input_file: str | None,
    column: str | None,
    out: Path | None,
    prompt_name: str | None,
    prompt: str | None,
    normalize: bool,
    truncate_dim: int | None,
    precision: VectorPrecision,
    batch_size: int | None,
    max_characters: int | None,
    header: bool,
    restart: bool,
    force: bool,
    threads: int | None,
    providers: tuple[Provider, ...],
    tuned: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Embed each TEXT, or each text of --input.

    Without --out, prints one JSON object a line with the text and its vector. A TEXT of - reads lines from stdin.

    Files say which space their vectors are in: .parquet in its schema, .npy in FILE.npy.json beside it, .jsonl with
    --header or another --precision than float32 in its first line.

    The same command after an interruption goes on where its state was saved, in FILE.partial beside --out, and gives
    the same bytes. Texts from stdin are embedded from the first again.
    """
    check_other_file(out, input_file)
    for name, given in (("--restart", restart), ("--force", force)):
        if given and out is None:
            raise UsageError(f"{name} was given without --out; name the file to write with --out")
    check_output(out, header, force)
    if header and as_json and out is None:
        raise UsageError("--header begins lines of JSON, but --json prints one document, which names the space anyway")
    if _STDIN in text and len(text) > 1:
        raise UsageError("- reads texts from stdin and cannot stand among other texts; give it alone")
    if text and input_file is not None:
        raise UsageError("texts were given both as arguments and with --input; choose one")
    if not text and input_file is None:
        raise UsageError("there is nothing to embed; give texts, --input FILE, or - for stdin")
    if column is not None and input_file is None:
        raise UsageError(f"--column '{column}' was given without --input; name the file it is a column of")
    source = _STDIN if text == (_STDIN,) else input_file
    with Encoder(bundle, providers or None, threads, tuned=tuned, verify=verify) as encoder:
        named = prompt_name or (encoder.default_prompt_name if prompt is None else None)
        metadata = VectorMetadata.of(encoder.manifest, normalize, truncate_dim, named, precision)
        resolved = encoder._embedder.prompts.resolve(prompt_name, prompt)
        run = _Run(encoder, resolved, batch_size, max_characters, normalize, truncate_dim, precision, metadata)
        resumed = 0
        if out is not None and source not in (None, _STDIN):
            assert source is not None
            count, resumed = _write_resumable(run, source, column, out, header, restart)
            summary: dict[str, Any] = {"texts": count, "out": str(out)}
        else:
            texts = iter(text) if source is None else read_texts(source, column)
            if out is not None:
                summary = {"texts": _write(run, texts, out, header), "out": str(out)}
            elif as_json:
                embeddings = [row.tolist() for _, rows in run.windows(texts) for row in rows]
                summary = {"texts": len(embeddings), "embeddings": embeddings}
            else:
                summary = {"texts": _print(run, texts, header)}
        if encoder.truncated:
            here = f"{summary['texts'] - resumed}{' texts embedded now' if resumed else ' texts'}"
            warn(f"{encoder.truncated} of {here} were cut to {encoder.max_seq_length} tokens")
        if out is not None:
            say(f"wrote {summary['texts']} vectors of {metadata.dimension} dimensions to {out}")
        if as_json:
            summary |= {"dimension": metadata.dimension, "space": encoder.space, "truncated": encoder.truncated}
            summary |= {} if precision == "float32" else {"precision": precision}
            summary |= {"resumed": resumed} if resumed else {}
            console.print_json(summary)


def _print(run: _Run, texts: Iterable[str], header: bool) -> int:
    if header or run.metadata.coded:
        click.echo(console.shown_json(run.metadata.to_json().decode()).encode())
    count = 0
    for window, rows in run.windows(texts):
        for text, row in zip(window, rows, strict=True):
            click.echo(console.shown_json(json_row(text, row).decode()).encode())
            count += 1
    return count


def _write(run: _Run, texts: Iterable[str], out: Path, header: bool) -> int:
    """Write texts that cannot be read again."""
    with writing_vectors(out, run.metadata, header) as writer:
        return _fill(lambda *window: write_parts(writer, *window), run.windows(texts), 0)


def _write_resumable(
    run: _Run, source: str, column: str | None, out: Path, header: bool, restart: bool
) -> tuple[int, int]:
    """Return the number of vectors in the file, and how many of them an interrupted run had computed."""
    made_with = run.made_with(out, header)
    with resuming(out, run.metadata, header, made_with, lambda: read_texts(source, column), restart, say) as found:
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
