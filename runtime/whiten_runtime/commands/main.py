"""Implement `whiten`: embed texts with a bundle, show it, verify it. Other packages add subcommands by entry point."""

import itertools
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

import click
import msgspec
import numpy as np

from whiten_runtime.bundle.client_files import changed_client_files
from whiten_runtime.bundle.manifest import VectorPrecision, read_manifest
from whiten_runtime.bundle.parity import gate_of
from whiten_runtime.bundle.space import space_of
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    bundle_argument,
    json_option,
    one_line_errors,
    provider_option,
    say,
    threads_option,
    warn,
)
from whiten_runtime.commands.push import push
from whiten_runtime.commands.similarity import similarity
from whiten_runtime.commands.tune import tune
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import ParityError, UsageError
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.files.texts import read_texts
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.write_vectors import Vectors, as_stored, check_output, json_row, writing_vectors
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.openvino import wants_bfloat16
from whiten_runtime.ort.providers import Provider
from whiten_runtime.vector_whitener import VectorWhitener

COMMAND_GROUP = "whiten.commands"

_ROWS_AT_ONCE = 1024

_Rows = Iterator[tuple[str, Vectors]]


class _PluginGroup(click.Group):
    """Groups commands; subcommands may be in packages that the runtime must not import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (point.name for point in entry_points(group=COMMAND_GROUP))
        return sorted({*super().list_commands(ctx), *names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        for point in entry_points(group=COMMAND_GROUP, name=cmd_name):
            command = point.load()
            assert isinstance(command, click.Command)
            return command
        return None


@click.group("whiten", cls=_PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="whiten")
def whiten() -> None:
    """Compute whitened sentence embeddings with bundles that whiten-export wrote."""


whiten.add_command(push)
whiten.add_command(similarity)
whiten.add_command(tune)

_header_option = click.option(
    "--header",
    is_flag=True,
    help="Begin lines of JSON with one that names the space of the vectors; codes of 8 bits or less always have it.",
)


@whiten.command()
@bundle_argument
@click.argument("text", nargs=-1)
@click.option(
    "--input",
    "input_file",
    metavar="FILE",
    help="Texts: .txt, .jsonl, .csv, .tsv, .parquet (.gz); - for stdin.",
)
@click.option("--column", help="Column or key of the text in --input.")
@click.option("--out", type=click.Path(path_type=Path), help="Write vectors to .npy, .parquet or .jsonl.")
@click.option("--prompt-name", metavar="NAME", help="Prompt of the bundle to apply. [default: its default prompt]")
@click.option("--prompt", metavar="TEXT", help='Prompt before each text, or around it with "{text}"; "" for none.')
@click.option("--normalize", is_flag=True, help="Divide each vector by its L2 norm.")
@click.option("--truncate-dim", type=click.IntRange(min=1), help="Keep the first coordinates only.")
@click.option(
    "--precision",
    type=click.Choice(get_args(VectorPrecision)),
    default="float32",
    show_default=True,
    help="8 bits a coordinate, or its sign alone in a bit. Lines of JSON then begin with a header.",
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Texts per run at most.")
@_header_option
@threads_option
@provider_option
@click.option("--tuned", is_flag=True, help="Run as whiten tune chose for this bundle on this machine.")
@json_option
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
    header: bool,
    threads: int | None,
    providers: tuple[Provider, ...],
    tuned: bool,
    as_json: bool,
) -> None:
    """Embed each TEXT, or each text of --input.

    Without --out, prints one JSON object a line with the text and its vector. A TEXT of - reads lines from stdin.

    Files say which space their vectors are in: .parquet in its schema, .npy in FILE.npy.json beside it, .jsonl with
    --header or another --precision than float32 in its first line.
    """
    check_output(out, header)
    _check_other_file(out, input_file)
    if header and as_json and out is None:
        raise UsageError("--header begins lines of JSON, but --json prints one document, which names the space anyway")
    if "-" in text and len(text) > 1:
        raise UsageError("- reads texts from stdin and cannot stand among other texts; give it alone")
    if text and input_file is not None:
        raise UsageError("texts were given both as arguments and with --input; choose one")
    if not text and input_file is None:
        raise UsageError("there is nothing to embed; give texts, --input FILE, or - for stdin")
    if column is not None and input_file is None:
        raise UsageError(f"--column '{column}' was given without --input; name the file it is a column of")
    with Encoder(bundle, providers or None, threads, tuned=tuned) as encoder:
        source = "-" if text == ("-",) else input_file
        texts, read = itertools.tee(text if source is None else read_texts(source, column))
        vectors = encoder.encode_iter(
            read,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize_embeddings=normalize,
            truncate_dim=truncate_dim,
            precision=precision,
        )
        named = prompt_name or (encoder.default_prompt_name if prompt is None else None)
        metadata = VectorMetadata.of(encoder.manifest, normalize, truncate_dim, named, precision)
        rows = zip(texts, (as_stored(vector, metadata) for vector in vectors), strict=True)
        if out is not None:
            summary = {"texts": _write(out, rows, metadata, header), "out": str(out)}
        elif as_json:
            embeddings = [vector.tolist() for _, vector in rows]
            summary = {"texts": len(embeddings), "embeddings": embeddings}
        else:
            if header or metadata.coded:
                click.echo(metadata.to_json())
            summary = {"texts": _print(rows)}
        if encoder.truncated:
            warn(f"{encoder.truncated} of {summary['texts']} texts were cut to {encoder.max_seq_length} tokens")
        if out is not None:
            say(f"wrote {summary['texts']} vectors of {metadata.dimension} dimensions to {out}")
        if as_json:
            summary |= {"dimension": metadata.dimension, "space": encoder.space, "truncated": encoder.truncated}
            summary |= {} if precision == "float32" else {"precision": precision}
            console.print_json(summary)


def _check_other_file(out: Path | None, source: str | Path | None) -> None:
    """Check that a command does not write the file that it reads."""
    if out is not None and source is not None and out.is_file() and Path(source).is_file() and out.samefile(source):
        raise UsageError(f"--out is '{out}', which is --input too and would be replaced; name another file")


def _print(rows: _Rows) -> int:
    count = 0
    for text, vector in rows:
        click.echo(json_row(text, vector))
        count += 1
    return count


def _write(out: Path, rows: _Rows, metadata: VectorMetadata, header: bool) -> int:
    from tqdm import tqdm

    bars = tqdm(unit=" texts", leave=False, disable=not sys.stderr.isatty())
    with writing_vectors(out, metadata, header) as writer, bars as bar:
        count = 0
        while part := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            writer.write([text for text, _ in part], np.array([vector for _, vector in part]))
            bar.update(len(part))
            count += len(part)
        return count


@whiten.command()
@bundle_argument
@click.option(
    "--input",
    "input_file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Vectors: .npy, .parquet or .jsonl.",
)
@click.option("--column", help="Column or key of the vectors in --input.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Write the whitened vectors to .npy, .parquet or .jsonl.",
)
@_header_option
@threads_option
@provider_option
@json_option
@one_line_errors
def transform(
    bundle: str,
    input_file: Path,
    column: str | None,
    out: Path,
    header: bool,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
) -> None:
    """Whiten the vectors of a file with a bundle that whiten-export --from-vectors wrote.

    The file that it writes says which space its vectors are in, as those of whiten embed do.
    """
    check_output(out, header)
    _check_other_file(out, input_file)
    count = 0
    with VectorWhitener(bundle, providers or None, threads) as whitener:
        with writing_vectors(out, VectorMetadata.of(whitener.manifest), header) as writer:
            for rows in read_vectors(input_file, column):
                writer.write([str(count + index) for index in range(len(rows))], whitener.transform(rows))
                count += len(rows)
        say(f"wrote {count} vectors of {whitener.dimension} dimensions to {out}")
        if as_json:
            summary = {"vectors": count, "out": str(out), "dimension": whitener.dimension, "space": whitener.space}
            console.print_json(summary)


@whiten.command()
@bundle_argument
@json_option
@one_line_errors
def info(bundle: str, as_json: bool) -> None:
    """Show what a bundle is: its source, layers, whitening and parity."""
    from whiten_runtime.commands.info import describe

    manifest = read_manifest(locate_bundle(bundle))
    if as_json:
        console.print_json(msgspec.structs.replace(manifest, space=space_of(manifest)))
    else:
        click.echo(describe(manifest))


@whiten.command()
@bundle_argument
@threads_option
@provider_option
@json_option
@one_line_errors
def verify(bundle: str, threads: int | None, providers: tuple[Provider, ...], as_json: bool) -> None:
    """Prove on this machine that a bundle computes what its reference, such as PyTorch, computed at export.

    Checks the SHA-256 of every file, embeds the bundle's probe texts and compares them with the vectors that the
    reference gave. Exits with 1 when a bound of the parity gate is not kept. Files that only other programs read may
    differ from the manifest; it names them.
    """
    path = locate_bundle(bundle)
    opened = VectorWhitener if read_manifest(path).input == "vectors" else Encoder
    with opened(path, providers or None, threads) as encoder:
        agreement = encoder.verify()
        manifest = encoder.manifest
        gate = gate_of("bf16" if wants_bfloat16(providers) else manifest.precision, manifest.vectors)
        active = encoder.providers[0]
        parity = manifest.parity
        changed = changed_client_files(path, manifest.files)
    passed = gate.passes(agreement)
    reference = parity.reference.split(",")[0] if parity else "its reference"
    if changed:
        names = ", ".join(changed)
        say(f"{bundle}: of files that only other programs read, these differ from its manifest: {names}")
    if as_json:
        report = {"passed": passed, "provider": active, "agreement": agreement, "gate": gate}
        console.print_json(report | {"changed_client_files": changed})
    if not passed:
        raise ParityError(f"{bundle}: not what {reference} computed, on {active}: {agreement}; wanted {gate}")
    say(f"{bundle}: equal to {reference} on {active}: {agreement} (gate: {gate})")


def main() -> None:
    """Run `whiten`."""
    console.run(whiten)
