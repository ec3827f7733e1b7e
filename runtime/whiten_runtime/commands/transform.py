"""Implement `whiten transform`: whiten the vectors of a file."""

from pathlib import Path

import click

from whiten_runtime.commands import console
from whiten_runtime.commands.console import bundle_argument, check_other_file, command, counted, force_option, say
from whiten_runtime.commands.help import heading, option
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.write_vectors import check_output, writing_vectors
from whiten_runtime.opened.vector_whitener import VectorWhitener


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
            console.print_json(summary)
