"""Implement `whiten drift`: compare new texts with the corpus that a bundle's whitening was fitted on."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.space import is_in_space, space_of
from whiten_runtime.commands import console
from whiten_runtime.commands.console import bundle_argument, command, counted, heading, kind_option, option, say, table
from whiten_runtime.errors import UsageError
from whiten_runtime.files.rows import read_texts
from whiten_runtime.files.vectors import VectorMetadata, read_metadata, read_vectors, sidecar_of
from whiten_runtime.hub import locate_bundle
from whiten_runtime.inference.loading import load_bundle, load_unwhitened
from whiten_runtime.inference.options import Prompts
from whiten_runtime.ort.session import SessionOptions, providers_for
from whiten_whitening.drift import Drift, DriftMonitor

EXIT_CODES = {"close": 0, "refit changes little": 0, "drifting": 3, "harmful": 4}


@command(
    section="Whitening",
    examples=(
        "whiten drift bundles/bert-base-l1-l12 --input today.txt",
        "whiten drift bundles/bert-base-l1-l12 --input rows.jsonl --column body --json",
    ),
)
@bundle_argument
@heading("Input")
@option(
    "--input",
    "input_file",
    required=True,
    metavar="FILE",
    help="Texts to compare (.txt, .jsonl, .csv, .tsv, .parquet; - for stdin), or vectors: .npy that whiten "
    "embed wrote with this bundle (FILE.npy.json beside it names the bundle), or those that a bundle takes.",
)
@option("--column", metavar="COLUMN", help="Column or key of the text or vector in --input.")
@kind_option
def drift(
    bundle: str,
    input_file: str,
    column: str | None,
    kind: str | None,
    as_json: bool,
) -> None:
    """Measure how far texts are from the corpus of a bundle's whitening.

    Exits with 0 if the texts are like the corpus or a new fit would change little, 3 if they differ from it but the
    whitening still helps, 4 if the whitening makes similarities worse: then fit it again.
    """
    path = locate_bundle(bundle)
    monitor = DriftMonitor(path)
    file = Path(input_file)
    if monitor.manifest.input == "vectors" or file.suffix.lower() == ".npy":
        if kind is not None:
            raise UsageError(f"--kind '{kind}' is for texts, and '{file}' holds vectors; leave it out")
        metadata = read_metadata(file)
        own = metadata is not None and is_in_space(monitor.manifest, metadata.space)
        unwhitened = monitor.manifest.input == "vectors" and not own
        if not unwhitened:
            _check_own(file, metadata, monitor.manifest)
        for rows in read_vectors(file, column):
            monitor.update(rows, unwhitened=unwhitened)
    else:
        _feed(monitor, path, input_file, column, kind)
    report = monitor.report()
    if report.verdict == "too few":
        raise UsageError(str(report))
    say(_described(report))
    if as_json:
        console.print_json(msgspec.to_builtins(report) | {"words": str(report)})
    sys.exit(EXIT_CODES[report.verdict])


def _check_own(file: Path, metadata: VectorMetadata | None, manifest: Manifest) -> None:
    """Check that a file says that it holds a bundle's own vectors, all coordinates and not normalised."""
    if metadata is None:
        raise UsageError(
            f"'{file}' may hold vectors of any space: {sidecar_of(file)}, which would say so, is missing or of another "
            f"program; embed the texts again with whiten embed, or give the texts"
        )
    if not is_in_space(manifest, metadata.space):
        raise UsageError(
            f"'{file}' holds vectors in space {metadata.space}, but this bundle's space is {space_of(manifest)}; give "
            "vectors that it has computed, or the texts"
        )
    if metadata.truncated_from is not None:
        raise UsageError(
            f"'{file}' holds the first {metadata.dimension} of {metadata.truncated_from} coordinates; give all, or "
            "the texts"
        )
    if metadata.normalized:
        raise UsageError(
            f"'{file}' holds vectors divided by their norms, which do not tell how far from the mean they were; give "
            "the texts"
        )


def _feed(monitor: DriftMonitor, bundle: Path, source: str, column: str | None, kind: str | None) -> None:
    """Embed the texts that are not blank, and pass their vectors to the monitor."""
    raw = monitor.manifest.normalize
    texts = (text for text in read_texts(source, column, kind) if text.strip())
    options = SessionOptions(providers_for())
    load = load_unwhitened if raw else load_bundle
    opened, embedder = load(bundle, options, sha256=monitor.bundle_sha256)
    prompt = Prompts.of(opened.manifest).of_fit(opened.manifest.whitening)
    with embedder:
        for _, vectors in embedder.windows(texts, replace(embedder.options, prompt=prompt)):
            monitor.update(vectors, unwhitened=raw)


def _described(report: Drift) -> str:
    ratio, expected = f"{report.spectrum_ratio:.3f}", f"{report.expected_spectrum_ratio:.3f}"
    unwhitened, whitened = (f"{score:.3f}" for score in report.iso_scores)
    rows = (
        ("mean shift", f"{report.mean_shift:.3f}", "0", "standard deviations of the corpus, per dimension"),
        ("spectrum ratio", ratio, expected, "mean variance over the dimensions"),
        ("IsoScore, unwhitened", unwhitened, "", "of the same vectors without the whitening"),
        ("IsoScore, whitened", whitened, "", "under the whitening"),
    )
    header = (counted(report.n, "text" if report.of_texts else "vector"), "found", "expected", "")
    return f"{table(header, rows)}\n{report.verdict}: {report}"
