"""Give a bundle another whitening without PyTorch: its graph computes the vectors, and only the head is replaced."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import msgspec

from whiten_export.corpus.development import check_searched, choice_record, chooser, read_development
from whiten_export.corpus.statistics import (
    Origin,
    SpecOf,
    Statistics,
    fit,
    fit_corpus,
    fit_until_settled,
    kind_moments,
    load_statistics,
    save_statistics,
)
from whiten_export.graph.builder import save_graph
from whiten_export.graph.head import set_head
from whiten_export.pipeline.align import align_refit
from whiten_export.pipeline.choose_whitening import by_rules, finish_map
from whiten_export.pipeline.prove import parity_record, seal, versions
from whiten_export.pipeline.recipe import Recipe
from whiten_export.proof.gate import Expected, check_bundle
from whiten_export.sources.load.bundle import StoredBundle, check_takes_texts, load_unwhitened
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
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.hub.uploading import CARD_FILE
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, soft_weight
from whiten_whitening.maps import WhiteningSpec, check_sample_count
from whiten_whitening.moments import Moments

_REPLACED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE, CARD_FILE})


def fit_statistics(
    path: str | Path,
    corpus: Corpus,
    out: Path | None = None,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
    spec_of: SpecOf | None = None,
) -> Statistics:
    """Return the statistics of a corpus's vectors before whitening, computed by a bundle's graph; write them to `out`.

    With `spec_of`, which decides on the whitening, the fit stops where more sentences would not move the map, unless
    the corpus has a limit.
    """
    report = reporter or Reporter()
    path = locate_bundle(path)
    manifest = read_manifest(path)
    check_takes_texts(path, manifest)
    sentences = corpus.count()
    whole = spec_of is None or corpus.limited
    report.stage(f"fitting on {sentences:,} sentences{'' if whole else ' at most'}")
    with load_unwhitened(path, options) as embedder, report.bar("sentences", sentences) as bar:
        if spec_of is None:
            statistics = fit_corpus(corpus, embedder, bar)
        else:
            statistics = fit_until_settled(corpus, embedder, spec_of, manifest.pooling == "sif", bar)
    statistics = statistics.fitted_at(manifest.precision)
    if out is not None:
        save_statistics(out, statistics, Origin.of(manifest))
    return statistics


def fit_or_load_statistics(
    path: Path, recipe: Recipe, stats: Path | None, options: SessionOptions, reporter: Reporter
) -> tuple[Statistics, WhiteningSpec, ChoiceRecord | None]:
    """Fit statistics of the corpus, or read those of a file, and choose what was left open about the whitening.

    Returns the statistics, the whitening that suits them, and its reason where it was left to a rule.
    """
    manifest = read_manifest(path)

    development = None if recipe.dev is None else read_development(Path(recipe.dev), reporter)
    check_searched(development, manifest, manifest.normalize)

    @cache
    def chosen_by() -> Callable[[Moments], Choice]:
        assert development is not None
        with load_unwhitened(path, options) as embedder:
            chosen = recipe.dim, recipe.shrinkage, reporter
            return chooser(development, manifest, manifest.normalize, embedder, *chosen, required=True)

    @cache
    def kinds() -> Mapping[str, Moments] | None:
        if stats is not None or BUILTIN_CORPUS in recipe.sources:
            return None
        with load_unwhitened(path, options) as embedder:
            return kind_moments(embedder)

    def choose(moments: Moments) -> Choice:
        if development is not None:
            return chosen_by()(moments)
        return by_rules(moments, recipe, manifest, soft_weight(moments, kinds()))

    if stats is not None:
        statistics = load_fitting(stats, manifest, reporter)
    else:
        spec_of = None if recipe.all_sentences else lambda moments: recipe.spec or choose(moments).spec
        corpus = Corpus(recipe.sources, recipe.column, recipe.max_sentences)
        statistics = fit_statistics(path, corpus, None, options, reporter, spec_of=spec_of)
    if recipe.spec is not None:
        return statistics, recipe.spec, None
    choice = choose(statistics.moments)
    assert choice.spec is not None  # a refit always has a map
    return statistics, choice.spec, choice_record(choice, development)


def load_fitting(path: Path, manifest: Manifest, reporter: Reporter) -> Statistics:
    """Read finished statistics of the same model as a bundle's, of any precision."""
    check_takes_texts(path, manifest)
    statistics, origin = load_statistics(path)
    if difference := origin.difference(Origin.of(manifest)):
        raise UsageError(f"{path}: is not of this bundle's model ({difference}); fit it with whiten fit")
    if origin.precision != manifest.precision:
        reporter.warn(
            f"the statistics are of {origin.precision} vectors: this bundle's can be compared with those, but their "
            "means differ a little, which whiten drift will see"
        )
    return statistics


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
) -> Export:
    """Write a bundle with another whitening, and verify it against the stored vectors of the reference.

    `choice` records why, where the whitening was left to a rule; the other arguments are those of `refit_bundle`.
    """
    report = reporter or Reporter()
    source = StoredBundle(path)
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
            "direction for its precision; use a smaller --dim, --beta or more --shrinkage; no bundle was written"
        )
    return parity_record(expected.reference, agreement, options)
