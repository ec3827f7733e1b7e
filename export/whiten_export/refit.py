"""Give a bundle another whitening without PyTorch, and export the whitening of a file of vectors."""

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.bundle_files import (
    CONFIG_FILE,
    POOLING_FILE,
    Export,
    rewrite_transformers_js,
    write_pooling,
    write_whitening,
)
from whiten_export.draft import fit_prompt
from whiten_export.fit import FitJob, affine, check_job, fit_whitening, keeps_norm, open_aligned
from whiten_export.graph.build import read_graph, save_graph
from whiten_export.graph.ends import OPSET, set_head, vectors_graph
from whiten_export.proof.gate import Case, Expected, check_bundle
from whiten_export.prove import parity_record, versions, write_proof
from whiten_export.recipe import Recipe, whitening_name
from whiten_export.staging import check_place, staged
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    WHITENING_FILE,
    changed_client_files,
    open_bundle,
)
from whiten_runtime.bundle.manifest import FORMAT_VERSION, CorpusRecord, FileRecord, Manifest, ParityRecord
from whiten_runtime.bundle.manifest import Source as SourceRecord
from whiten_runtime.bundle.parity import GATES, read_probes
from whiten_runtime.errors import DataError, ParityError, UsageError, instance_of, path_of
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.files.vectors import read_vectors
from whiten_runtime.hub import CARD_FILE, locate_bundle
from whiten_runtime.inference.loading import load_unwhitened
from whiten_runtime.ort.session import Provider, SessionOptions, providers_for
from whiten_runtime.reporter import Reporter
from whiten_runtime.vector_whitener import VectorWhitener
from whiten_whitening.choosing import check_searched, read_development
from whiten_whitening.maps import Shrinkage, WhiteningMap, WhiteningSpec
from whiten_whitening.statistics import (
    Origin,
    Statistics,
    check_takes_texts,
    fit_statistics,
    fit_vectors,
    load_statistics,
    warn_of_corpus,
)

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"

_CHANGED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE, CARD_FILE})


class StoredBundle:
    """Reads a bundle of texts; its draft is its manifest."""

    def __init__(self, path: str | Path) -> None:
        self.name, self._bundle = path, open_bundle(locate_bundle(path))
        check_takes_texts(path, self.draft)

    @property
    def draft(self) -> Manifest:
        return self._bundle.manifest

    @property
    def path(self) -> Path:
        return self._bundle.path

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the manifest, which names the bundle that was opened."""
        return self._bundle.sha256

    def graph(self) -> ir.Model:
        """Return the graph, whose head is to be replaced."""
        return read_graph(self._bundle.model)

    def expected(self) -> Expected:
        """Return the stored vectors of the reference before whitening."""
        parity = self.draft.parity
        first = parity.reference.split(_AGAIN)[0] if parity else "the reference"
        max_tokens = parity.max_tokens if parity else msgspec.UNSET
        probes = read_probes(self._bundle)
        stored = [Case((), expected=probes.unwhitened, texts=probes.texts)]
        if probes.long is not None:
            stored.append(Case((), expected=probes.long.unwhitened, texts=probes.long.texts, long=True))
        return Expected(first + _AGAIN, stored, max_tokens=max_tokens)

    def copy_files(self, folder: Path) -> None:
        """Copy the files to a folder, but for those that another whitening changes."""
        for name in self.draft.files.keys() - _CHANGED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (self._bundle.path / name).open("rb") as source, (folder / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)  # copyfile names the source in errors of the copy

    def check_unchanged(self) -> None:
        """Raise IntegrityError if the bundle was replaced since; its weights are read while a graph is written."""
        self._bundle.check_unchanged()

    def changed_files(self) -> dict[str, FileRecord]:
        """Return the records of client files that another program wrote anew, as the export wrote them."""
        files = self.draft.files
        return {name: files[name] for name in changed_client_files(self._bundle.path, files) if name in files}


_PROBES = 64


class VectorFile:
    """Reads a file of vectors, and the statistics of all of them."""

    def __init__(self, file: Path, name: str, column: str | None, report: Reporter) -> None:
        self._file, self._name, self._column = file, name, column
        self.statistics = self._fitted(report)
        self.width = len(self.statistics.moments.mean)

    @cached_property
    def draft(self) -> Manifest:
        """The manifest of a graph that returns the vectors as they are."""
        (corpus,) = self.statistics.corpus
        source = SourceRecord(
            model=self._name,
            checkpoint=None,
            revision=None,
            weights_sha256=corpus.sha256,
            model_type="vectors",
            num_hidden_layers=0,
            hidden_size=self.width,
            sentence_similarity=False,
        )
        return Manifest(
            format_version=FORMAT_VERSION,
            name=self._name,
            source=source,
            input="vectors",
            layers=(),
            pooling=None,
            whitening=None,
            normalize=False,
            dimension=self.width,
            max_seq_length=0,
            pad_token_id=0,
            precision="fp32",
            opset=OPSET,
            versions={},
            parity=None,
            files={},
        )

    def graph(self) -> ir.Model:
        """Return the graph up to the vector before whitening, which is its input."""
        return vectors_graph(self.width)

    def expected(self) -> Expected:
        """Return vectors spread evenly over the file, as the vectors before whitening."""
        count = self.statistics.moments.n
        wanted = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.intp))
        taken, start = [], 0
        for rows in self._read():
            inside = wanted[(wanted >= start) & (wanted < start + len(rows))]
            taken.append(rows[inside - start])
            start += len(rows)
        vectors = np.concatenate(taken).astype(np.float64)
        return Expected(f"numpy {np.__version__}, float64", [Case((), expected=vectors)])

    def _fitted(self, report: Reporter) -> Statistics:
        """Return the statistics of all vectors of the file, with the SHA-256 over them as float32."""
        digest = hashlib.sha256()

        def parts() -> Iterator[NDArray[np.float32]]:
            for rows in self._read():
                digest.update(np.ascontiguousarray(rows, "<f4").tobytes())
                yield rows

        with report.bar("vectors", None) as advance:
            statistics = fit_vectors(parts(), advance)
        if statistics is None:
            raise DataError(f"{self._file}: holds no vector; give a file with vectors in it")
        record = CorpusRecord(name=self._file.name, sha256=digest.hexdigest(), sentences=statistics.moments.n)
        return dataclasses.replace(statistics, corpus=(record,))

    def _read(self) -> Iterator[NDArray[np.float32]]:
        return read_vectors(self._file, self._column)


def refit(
    path: str | Path,
    recipe: Recipe,
    stats: Sequence[Path],
    out: Path,
    replace: bool = False,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
    spec: WhiteningSpec | None = None,
) -> Export:
    """Write a bundle with another whitening: the recipe's, or `spec`.

    It is fitted on the recipe's corpus, or on files of statistics, `stats`.
    """
    report = reporter or Reporter()
    check_place(out, replace)
    source = StoredBundle(path)
    manifest, job = draft_refit(recipe, source, stats, out.absolute().name, report, spec)
    check_job(job, manifest)
    on = options or SessionOptions()
    with staged(out, replace, report=report) as stage:
        source.copy_files(stage)
        graph, expected = source.graph(), source.expected()
        manifest, fitted = fit_whitening(
            manifest,
            job,
            lambda: load_unwhitened(source.path, on, source.sha256)[1],
            manifest.precision,
            report,
        )
        if job.aligned_to is None:
            report.stage(f"stored vectors of {path} do not fit the new bundle; --align-to would keep them usable")
        report.stage(f"writing {out}, and checking it")
        _write_head(stage, graph, manifest, fitted)
        source.check_unchanged()
        write_pooling(stage, manifest.dimension)
        unchanged = source.changed_files()
        if CONFIG_FILE in manifest.files and CONFIG_FILE not in unchanged:
            rewrite_transformers_js(stage, (stage / EXTERNAL_DATA_FILE).is_file())
        for name in (POOLING_FILE, CARD_FILE):  # which are written anew
            unchanged.pop(name, None)
        made = {f"refit-{name}": number for name, number in versions().items() if name in ("whiten", "numpy")}
        manifest = msgspec.structs.replace(manifest, published=None, versions=manifest.versions | made)
        check = partial(_check_refit, stage, on)
        manifest = write_proof(stage, manifest, fitted, expected, check, unchanged)
    return Export(out, manifest)


def _write_head(folder: Path, graph: ir.Model, manifest: Manifest, fitted: WhiteningMap | None) -> None:
    """Write a graph with the whitening as its end, and the whitening."""
    set_head(graph, affine(fitted), manifest.normalize)
    save_graph(graph, folder / MODEL_FILE)
    if fitted is not None:
        write_whitening(folder, fitted)


def _check_refit(folder: Path, options: SessionOptions, manifest: Manifest, expected: Expected) -> ParityRecord:
    """Compare a bundle that is whitened anew with the stored vectors of the reference."""
    gate = GATES[manifest.precision]
    agreement, _ = check_bundle(folder, expected, options)
    if not gate.passes(agreement):
        raise ParityError(
            f"whitened anew, the bundle misses its gate: {agreement}; wanted {gate}: texts differ too little in some "
            "direction for its precision; use a smaller --dim, another --whitening or more --shrinkage; no bundle was "
            "written"
        )
    return parity_record(expected.reference, agreement, options, expected.max_tokens)


def draft_refit(
    recipe: Recipe,
    source: StoredBundle,
    stats: Sequence[Path],
    name: str,
    report: Reporter,
    spec: WhiteningSpec | None,
) -> tuple[Manifest, FitJob]:
    """Return a bundle's manifest with the choices of a refit, and the whitening to fit."""
    old, spec = source.draft, spec or recipe.spec
    dimension = recipe.dim if spec is None else spec.dimension
    aligned_to = open_aligned(recipe.align_to)
    if aligned_to is not None:
        dimension = aligned_to.dimension(dimension, spec)
        spec = None if spec is None else dataclasses.replace(spec, dimension=dimension)
    development = None if recipe.dev is None else read_development(Path(recipe.dev), report)
    normalize = keeps_norm(old)
    check_searched(development, old, normalize)
    statistics = load_fitting(stats, old, report) if stats else None
    width = old.unwhitened_width
    corpus = None if stats else recipe.corpus_for(width)
    sentences = statistics.moments.n if statistics else corpus.count() if corpus else 0
    different = sentences if corpus is None else warn_of_corpus(corpus, sentences, source.path, old, report)
    job = FitJob(
        spec,
        spec is None,
        dimension,
        recipe.shrinkage,
        normalize,
        corpus=corpus,
        sentences=sentences,
        statistics=statistics,
        development=development,
        aligned_to=aligned_to,
        required=True,
        prompt_name=fit_prompt(old, recipe.prompt_name),
    )
    job.check_count(old, different)
    return msgspec.structs.replace(old, name=name, choice=None), job


def load_fitting(paths: Sequence[Path], manifest: Manifest, reporter: Reporter) -> Statistics:
    """Read finished statistics of the same model as a bundle's, of any precision, and merge them in order."""
    every, precisions, sources = list[Statistics](), set[str](), set[str]()
    for path in paths:
        statistics, origin = load_statistics(path)
        if difference := origin.difference(Origin.of(manifest)):
            raise UsageError(f"{path}: is not of this bundle's model ({difference}); fit it with whiten fit")
        hashes = {corpus.sha256 for corpus in statistics.corpus}
        if hashes & sources:
            raise UsageError(f"{path}: has sentences of which other --stats are too; name each file of a corpus once")
        sources |= hashes
        every.append(statistics)
        precisions.add(origin.precision)
    if others := sorted(precisions - {manifest.precision}):
        reporter.warn(
            f"the statistics are of {' and '.join(others)} vectors: this bundle's can be compared with those, but "
            "their means differ a little, which whiten drift will see"
        )
    return reduce(Statistics.merge, every)


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
    files = statistics if isinstance(statistics, list | tuple) else [statistics]
    if not files:
        raise UsageError("statistics is empty; name at least one file of whiten fit")
    stats = [path_of("statistics", file) for file in files]
    recipe = Recipe(str(path), align_to=align_to)
    return refit(path, recipe, stats, path_of("out", out), replace, _options(providers, threads), reporter, spec)


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


def _options(providers: Sequence[Provider] | None, threads: int | None) -> SessionOptions:
    return SessionOptions(providers_for(providers), threads)


def export_vectors(
    file: str | Path,
    out: str | Path | None = None,
    replace: bool = False,
    reporter: Reporter | None = None,
    *,
    name: str | None = None,
    column: str | None = None,
    spec: WhiteningSpec | Literal["auto"] | None = None,
    normalize: bool = False,
    dim: int | None = None,
    shrinkage: Shrinkage = "none",
    align_to: str | Path | None = None,
) -> Export:
    """Fit a whitening on a file of vectors, and write it as a bundle.

    Args:
        file: a .npy, .parquet or .jsonl file.
        out: directory to create; None for bundles/NAME-vectors.
        replace: replace a bundle that already exists.
        reporter: receives stages, warnings and progress; None for no reports.
        name: name of the model that computed the vectors; None for the file's name.
        column: column or key of the vectors.
        spec: whitening to fit; None for that of pca, "auto" to choose one by the spectrum of the vectors.
        normalize: divide by the L2 norm inside the graph.
        dim: number of leading dimensions that a chosen whitening keeps; None for all.
        shrinkage: shrinkage of a chosen whitening; "none" to choose it, too.
        align_to: bundle of vectors of the same model that are to stay usable: the new map is turned onto its map.

    Raises:
        UsageError: choices are not valid for the file or the directory, or there are too few vectors.
        DataError: the file does not hold vectors.
        ParityError: the graph differs from numpy's result; nothing is written.
    """
    file, out = path_of("file", file), None if out is None else path_of("out", out)
    asked = None if spec == "auto" else spec or WhiteningSpec()
    if asked is not None:
        instance_of("spec", asked, WhiteningSpec, "WhiteningSpec(method='pca')")
        dim, shrinkage = asked.dimension, asked.shrinkage
    report = reporter or Reporter()
    name = name or file.name.split(".")[0]
    target = out or Path("bundles") / _bundle_name(name, asked, dim, shrinkage, normalize)
    check_place(target, replace)
    aligned_to = open_aligned(align_to)
    if aligned_to is not None:
        dim = aligned_to.dimension(dim, asked)
        asked = None if asked is None else dataclasses.replace(asked, dimension=dim)
    report.stage(f"reading {file}")
    source = VectorFile(file, name, column, report)
    job = FitJob(
        asked,
        asked is None,
        dim,
        shrinkage,
        normalize,
        sentences=source.statistics.moments.n,
        statistics=source.statistics,
        aligned_to=aligned_to,
    )
    manifest = msgspec.structs.replace(source.draft, name=target.absolute().name, normalize=normalize)
    if warning := job.check_count(manifest):
        report.warn(warning)
    check_job(job, manifest)
    with staged(target, replace, report=report) as stage:
        graph, expected = source.graph(), source.expected()
        manifest, fitted = fit_whitening(manifest, job, None, "fp32", report)
        _write_head(stage, graph, manifest, fitted)
        report.stage("checking against numpy in float64")
        manifest = msgspec.structs.replace(manifest, versions=versions())
        manifest = write_proof(stage, manifest, fitted, expected, partial(_check_vectors, stage))
    return Export(target, manifest)


def _check_vectors(folder: Path, manifest: Manifest, expected: Expected) -> ParityRecord:
    """Compare a bundle of vectors with numpy."""
    gate = GATES[manifest.precision]
    with VectorWhitener(folder) as whitener:
        agreement = whitener.verify()
    if not gate.passes(agreement):
        raise ParityError(f"the graph is not what numpy computes: {agreement}; wanted {gate}; no bundle was written")
    return parity_record(expected.reference, agreement)


def _bundle_name(name: str, spec: WhiteningSpec | None, dim: int | None, shrinkage: Shrinkage, normalize: bool) -> str:
    whitening = "auto"
    if spec is not None:
        strength = "centre" if spec.beta == 0 else "partial" if spec.beta < 1 else "pca"
        whitening = strength if spec.method == "pca" else spec.method
    parts = [name.replace("/", "-"), "vectors", *whitening_name(whitening, dim, shrinkage, "pca")]
    parts += ["norm"] if normalize else []
    return "-".join(parts)
