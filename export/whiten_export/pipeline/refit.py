"""Give a bundle another whitening without PyTorch: its graph computes the vectors, and only the head is replaced."""

from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path

import msgspec

from whiten_export.graph.builder import save_graph
from whiten_export.graph.head import set_head
from whiten_export.pipeline.align import align_refit
from whiten_export.pipeline.choose_whitening import by_rules, finish_map
from whiten_export.pipeline.prove import parity_record, seal, versions
from whiten_export.pipeline.recipe import Recipe
from whiten_export.proof.gate import Expected, check_bundle
from whiten_export.sources.load.bundle import StoredBundle
from whiten_export.writing.client_files import (
    CONFIG_FILE,
    POOLING_FILE,
    Export,
    rewrite_transformers_js,
    write_pooling,
    write_whitening,
)
from whiten_export.writing.staging import staged
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    WHITENING_FILE,
)
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.bundle.records import ChoiceRecord, ParityRecord
from whiten_runtime.errors import ParityError, UsageError
from whiten_runtime.hub.uploading import CARD_FILE
from whiten_runtime.inference.loading import load_unwhitened
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.development import (
    check_searched,
    choice_record,
    choose_by_development,
    read_development,
)
from whiten_whitening.maps import WhiteningSpec, check_sample_count
from whiten_whitening.statistics import (
    Origin,
    Statistics,
    check_takes_texts,
    fit,
    fit_statistics,
    load_statistics,
)

_REPLACED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE, CARD_FILE})


def fit_or_load_statistics(
    path: Path, recipe: Recipe, stats: Sequence[Path], options: SessionOptions, reporter: Reporter, sha256: str
) -> tuple[Statistics, WhiteningSpec, ChoiceRecord | None]:
    """Fit statistics of the corpus, or read those of files, and choose what was left open about the whitening.

    `sha256` is that of the bundle's manifest: another bundle is refused. Returns the statistics, the whitening that
    suits them, and its reason where it was left to a rule.
    """
    manifest = read_manifest(path)
    development = None if recipe.dev is None else read_development(Path(recipe.dev), reporter)
    check_searched(development, manifest, manifest.normalize)
    if stats:
        statistics = load_fitting(stats, manifest, reporter)
    else:
        corpus = recipe.corpus_for(manifest.unwhitened_width)
        statistics = fit_statistics(path, corpus, None, options, reporter, sha256)
    if recipe.spec is not None:
        return statistics, recipe.spec, None
    if development is None:
        choice = by_rules(statistics.moments, recipe, manifest)
    else:
        chosen = development, statistics.moments, recipe.dim, recipe.shrinkage
        with load_unwhitened(path, options, sha256)[1] as embedder:
            choice = choose_by_development(*chosen, manifest, manifest.normalize, embedder, reporter, required=True)
    assert choice.spec is not None  # a refit always has a map
    return statistics, choice.spec, choice_record(choice, development)


def load_fitting(paths: Sequence[Path], manifest: Manifest, reporter: Reporter) -> Statistics:
    """Read finished statistics of the same model as a bundle's, of any precision, and merge them in order."""
    check_takes_texts(manifest.name, manifest)
    every, precisions = list[Statistics](), set[str]()
    for path in paths:
        statistics, origin = load_statistics(path)
        if difference := origin.difference(Origin.of(manifest)):
            raise UsageError(f"{path}: is not of this bundle's model ({difference}); fit it with whiten fit")
        every.append(statistics)
        precisions.add(origin.precision)
    if others := sorted(precisions - {manifest.precision}):
        reporter.warn(
            f"the statistics are of {' and '.join(others)} vectors: this bundle's can be compared with those, but "
            "their means differ a little, which whiten drift will see"
        )
    return reduce(Statistics.merge, every)


def write_refit(
    path: str | Path,
    statistics: Statistics,
    spec: WhiteningSpec,
    out: Path,
    replace: bool = False,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
    align_to: str | Path | None = None,
    choice: ChoiceRecord | None = None,
    sha256: str | None = None,
) -> Export:
    """Write a bundle with another whitening, and verify it against the stored vectors of the reference.

    `choice` records why, where the whitening was left to a rule; `sha256` is that of the manifest of the bundle whose
    statistics these are, and None for whatever bundle is there; the other arguments are those of `refit_bundle`.
    """
    report = reporter or Reporter()
    source = StoredBundle(path, sha256)
    expected, old = source.expected(), source.draft
    width = old.unwhitened_width
    if len(statistics.moments.mean) != width:
        raise UsageError(f"the statistics are of {len(statistics.moments.mean)} dimensions, but {path} has {width}")
    check_sample_count(statistics.moments.n, width, spec)
    made = {f"refit-{name}": version for name, version in versions().items() if name in ("whiten", "numpy")}
    manifest = msgspec.structs.replace(
        old,
        name=out.absolute().name,
        choice=choice,
        published=None,
        versions=old.versions | made,
    )
    aligned_to, spec = (None, spec) if align_to is None else align_refit(align_to, old, spec)
    fitted = fit(statistics.moments, spec, old.pooling == "sif")
    assert fitted is not None
    manifest, fitted = finish_map(manifest, fitted, statistics, aligned_to, report)
    if aligned_to is None:
        report.stage(f"stored vectors of {path} do not fit the new bundle; --align-to would keep them usable")
    report.stage(f"writing {out}, and checking it")
    with staged(out, replace) as stage:
        source.copy(stage, _REPLACED)
        graph = source.graph()
        set_head(graph, (fitted.mean, fitted.weight), manifest.normalize)
        save_graph(graph, stage / MODEL_FILE)
        del graph
        write_whitening(stage, fitted)
        write_pooling(stage, manifest.dimension)
        unchanged = source.changed_files()
        source.check_unchanged()
        for name in (POOLING_FILE, CARD_FILE):  # which a refit writes itself
            unchanged.pop(name, None)
        if CONFIG_FILE in old.files and CONFIG_FILE not in unchanged:
            rewrite_transformers_js(stage, (stage / EXTERNAL_DATA_FILE).is_file())
        check = partial(_check, stage, options or SessionOptions())
        manifest = seal(stage, manifest, fitted, expected, check, unchanged)
    return Export(out, manifest)


def _check(stage: Path, options: SessionOptions, manifest: Manifest, expected: Expected) -> ParityRecord:
    agreement = check_bundle(stage, expected, options).agreement
    gate = GATES[manifest.precision]
    if not gate.passes(agreement):
        raise ParityError(
            f"whitened anew, the bundle misses its gate: {agreement}; wanted {gate}: texts differ too little in some "
            "direction for its precision; use a smaller --dim, another --whitening or more --shrinkage; no bundle was "
            "written"
        )
    return parity_record(expected.reference, agreement, options)
