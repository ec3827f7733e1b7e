"""Fit statistics of a corpus into a file, and refit a bundle with such a file: what `whiten` offers to Python."""

from collections.abc import Sequence
from pathlib import Path

from whiten_export.pipeline.refit import load_fitting, write_refit
from whiten_export.writing.client_files import Export
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.errors import UsageError, path_of
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import Provider, providers_for
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec
from whiten_whitening.statistics import fit_statistics


def fit_bundle(
    path: str | Path,
    corpus: Corpus,
    out: str | Path,
    *,
    providers: Sequence[Provider] | None = None,
    threads: int | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Write the statistics of a corpus's vectors before whitening, computed by a bundle's graph, as `whiten fit` does.

    Args:
        path: the bundle, of any precision, whitened or not: its directory, or a repository of the model hub.
        corpus: sentences to fit on.
        out: file to write the statistics to, safetensors.
        providers: onnxruntime execution providers, as in `Encoder`.
        threads: threads per call, as in `Encoder`.
        reporter: receives stages, warnings and progress.

    Raises:
        UsageError: the bundle takes vectors.
        DataError: the corpus cannot be read, or a vector is not finite.
        BundleError: not a bundle, or not a whole one.
    """
    fit_statistics(path, corpus, path_of("out", out), _options(providers, threads), reporter)


def refit_bundle(
    path: str | Path,
    statistics: str | Path | Sequence[str | Path],
    spec: WhiteningSpec,
    out: str | Path,
    *,
    replace: bool = False,
    align_to: str | Path | None = None,
    providers: Sequence[Provider] | None = None,
    threads: int | None = None,
    reporter: Reporter | None = None,
) -> Export:
    """Write a bundle with another whitening, and verify it against the stored vectors of the reference.

    Args:
        path: the bundle: its directory, or a repository of the model hub.
        statistics: file that `fit_bundle` or `whiten fit` wrote with a bundle of the same model; or several, of parts
            of a corpus, which are merged in their order.
        spec: whitening to fit.
        out: directory to create.
        replace: replace a bundle that already exists.
        align_to: bundle of the same model whose stored vectors are to stay usable: the new map is turned onto its map.
        providers: onnxruntime execution providers, as in `Encoder`.
        threads: threads per call, as in `Encoder`.
        reporter: receives stages and warnings.

    Raises:
        UsageError: the whitening cannot be fitted on the statistics or aligned, they are of another model, the bundle
            takes vectors, or `out` exists.
        DataError: not a file of statistics, or a damaged one.
        BundleError: not a bundle, or not a whole one.
        ParityError: the new bundle fails its parity gate; nothing is written.
    """
    report, root = reporter or Reporter(), locate_bundle(path)
    files = statistics if isinstance(statistics, list | tuple) else [statistics]
    if not files:
        raise UsageError("statistics is empty; name at least one file of whiten fit")
    fitted = load_fitting([path_of("statistics", file) for file in files], read_manifest(root), report)
    options = _options(providers, threads)
    return write_refit(root, fitted, spec, path_of("out", out), replace, options, report, align_to=align_to)


def _options(providers: Sequence[Provider] | None, threads: int | None) -> SessionOptions:
    return SessionOptions(providers_for(providers), threads)
