"""Implement `whiten embed` and `whiten transform`: vectors of texts, and whitened vectors of a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_runtime.commands.console import (
    WholeNumber,
    bundle_argument,
    check_other_file,
    command,
    counted,
    device_option,
    drawn_bar,
    echo,
    force_option,
    given_text,
    heading,
    kind_option,
    option,
    print_json,
    say,
    shown_json,
    warn,
)
from whiten_runtime.errors import DataError, NoVectorError, UsageError
from whiten_runtime.ort.session import Provider

if TYPE_CHECKING:
    from whiten_runtime.files.vectors import VectorMetadata, Vectors
    from whiten_runtime.inference.embedder import Embedder
    from whiten_runtime.inference.options import EncodeOptions

    Windows = Iterator[tuple[list[str], Vectors]]


@command(
    section="Use",
    examples=(
        'whiten embed bundles/minilm "A text." "Another text."',
        "whiten embed bundles/minilm --input texts.txt --out vectors.npy",
    ),
)
@bundle_argument
@click.argument("text", nargs=-1, callback=given_text)
@heading("Input")
@option(
    "--input",
    "input_file",
    metavar="FILE",
    help="Texts: .txt, .jsonl, .csv, .tsv or .parquet, each also .gz, .zst, .bz2 or .xz; - is stdin.",
)
@option("--column", metavar="COLUMN", help="Column or key of the text in --input.")
@kind_option
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
@heading("Vectors")
@option("--normalize", is_flag=True, help="Divide each vector by its L2 norm.")
@option("--truncate-dim", type=WholeNumber(min=1), metavar="K", help="Keep the first K coordinates only.")
@option(
    "--vector-type",
    "precision",
    type=click.Choice(get_args(VectorPrecision)),
    metavar="|".join(get_args(VectorPrecision)),
    default="float32",
    show_default=True,
    help="float32; int8 or uint8, a quarter of the size, of a bundle with a whitening; binary or ubinary, the signs "
    "alone, 1/32.",
)
@heading("Output")
@option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write vectors to .npy, .parquet or .jsonl."
)
@force_option
@heading("Execution")
@device_option
def embed(
    bundle: str,
    text: tuple[str, ...],
    input_file: str | None,
    column: str | None,
    kind: str | None,
    out: Path | None,
    prompt_name: str | None,
    prompt: str | None,
    normalize: bool,
    truncate_dim: int | None,
    precision: VectorPrecision,
    force: bool,
    providers: tuple[Provider, ...],
    as_json: bool,
) -> None:
    """Embed each TEXT, or each text of --input.

    Without --out, prints one JSON object a line with the text and its vector. A TEXT of - reads lines from stdin, and
    answers those of a pipe as they come.

    Files say which space their vectors are in: .parquet in its schema, .npy in FILE.npy.json next to it, .jsonl in its
    first line.

    A file of --out appears when it is complete. An interrupted run begins anew; whiten embed-many resumes.
    """
    from whiten_runtime.encoder import Encoder, embedder_of
    from whiten_runtime.files.rows import STDIN, arriving_texts, read_texts
    from whiten_runtime.files.vectors import VectorMetadata, check_output, json_numbers
    from whiten_runtime.opened_bundle import encode_options

    check_other_file(out, input_file)
    if force and out is None:
        raise UsageError("--force was given without --out; name the file to write with --out")
    check_output(out, force)
    if STDIN in text and len(text) > 1:
        raise UsageError("- reads texts from stdin and cannot stand among other texts; give it alone")
    if text and input_file is not None:
        raise UsageError("texts were given both as arguments and with --input; choose one")
    if not text and input_file is None:
        raise UsageError("there is nothing to embed; give texts, --input FILE, or - for stdin")
    if column is not None and input_file is None:
        raise UsageError(f"--column '{column}' was given without --input; name the file it is a column of")
    if kind is not None and input_file is None:
        raise UsageError(f"--kind '{kind}' was given without --input; name the file, or - for stdin, with --input")
    source = STDIN if text == (STDIN,) else input_file
    with Encoder(bundle, providers or None) as encoder:
        metadata = VectorMetadata.of(encoder.manifest, normalize, truncate_dim, prompt_name, prompt, precision)
        options = encode_options(
            encoder,
            prompt_name=prompt_name,
            prompt=prompt,
            normalize_embeddings=normalize,
            truncate_dim=truncate_dim,
            precision=precision,
        )
        embedder = embedder_of(encoder)
        lines = source == STDIN and column is None and kind in (None, "txt")
        arriving = arriving_texts() if lines else None
        if arriving is not None:
            windows = _as_they_come(embedder, arriving, options)
        else:
            windows = embedder.windows(text if source is None else read_texts(source, column, kind), options)
        if source is not None:
            windows = _placed(windows, source, column, kind)
        summary: dict[str, Any] = {}
        if out is not None:
            summary = {"texts": _write(windows, metadata, out), "out": str(out)}
        elif as_json:
            embeddings = [row for _, rows in windows for row in json_numbers(rows)]
            summary = {"texts": len(embeddings), "embeddings": embeddings}
        else:
            summary = {"texts": _print(windows)}
        if encoder.truncated:
            limit = f"at most {encoder.max_seq_length} tokens of a text are read"
            warn(f"{encoder.truncated} of {summary['texts']} texts were cut: {limit}")
        if out is not None:
            say(f"wrote {counted(summary['texts'], 'vector')} of {metadata.dimension} dimensions to {out}")
        if as_json:
            summary |= {"dimension": metadata.dimension, "space": encoder.space, "truncated": encoder.truncated}
            print_json(summary | ({} if precision == "float32" else {"precision": precision}))


def _as_they_come(embedder: "Embedder", arriving: Iterator[list[str]], options: "EncodeOptions") -> "Windows":
    """Yield lists of texts with their vectors, each before the next list is waited for."""
    done = 0
    for texts in arriving:
        try:
            yield texts, embedder.embed(texts, options)
        except NoVectorError as error:
            raise error.moved(done) from None
        done += len(texts)


def _placed(windows: "Windows", source: str, column: str | None, kind: str | None) -> "Windows":
    """Yield windows of the texts of a file; name the line of a text that gets no vector."""
    from whiten_runtime.files.rows import place_of

    try:
        yield from windows
    except NoVectorError as error:
        where = place_of(source, column, error.index, kind)
        raise DataError(f"{where} {error.failures[error.index]}; {error.advice}") from None


def _print(windows: "Windows") -> int:
    from whiten_runtime.files.vectors import json_row

    count = 0
    for texts, rows in windows:
        for text, row in zip(texts, rows, strict=True):
            echo(shown_json(json_row(text, row).decode()).encode())
        count += len(texts)
    return count


def _write(windows: "Windows", metadata: "VectorMetadata", out: Path) -> int:
    from whiten_runtime.files.vectors import write_parts, writing_vectors

    count = 0
    with writing_vectors(out, metadata) as writer, drawn_bar("texts", None) as bar:
        for texts, rows in windows:
            write_parts(writer, texts, rows)
            bar.update(len(texts))
            count += len(texts)
    return count


@command(
    section="Whitening",
    examples=(
        "whiten transform bundles/my-api-vectors --input vectors.npy --out white.npy",
        "whiten transform bundles/mine --input v.parquet --column v --out white.npy",
    ),
)
@bundle_argument
@heading("Input")
@option(
    "--input",
    "input_file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Vectors: .npy, .parquet or .jsonl.",
)
@option("--column", metavar="COLUMN", help="Column or key of the vectors in --input.")
@heading("Output")
@option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write .npy, .parquet or .jsonl.",
)
@force_option
def transform(
    bundle: str,
    input_file: Path,
    column: str | None,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Whiten the vectors of a file.

    BUNDLE is one that whiten-export --from-vectors wrote. The file that it writes says which space its vectors are
    in, as those of whiten embed do.
    """
    from whiten_runtime.files.vectors import VectorMetadata, check_output, read_vectors, writing_vectors
    from whiten_runtime.vector_whitener import VectorWhitener

    check_other_file(out, input_file)
    check_output(out, force)
    count = 0
    with VectorWhitener(bundle) as whitener:
        with writing_vectors(out, VectorMetadata.of(whitener.manifest)) as writer:
            for rows in read_vectors(input_file, column):
                writer.write([str(count + index) for index in range(len(rows))], whitener.transform(rows))
                count += len(rows)
        say(f"wrote {counted(count, 'vector')} of {whitener.dimension} dimensions to {out}")
        if as_json:
            summary = {"vectors": count, "out": str(out), "dimension": whitener.dimension, "space": whitener.space}
            print_json(summary)
