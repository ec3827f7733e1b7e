"""Fit the whitening of an export, and the weights of its layers: what was asked for, or what suits the corpus."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import tokenizers

from whiten_export.corpus.statistics import (
    Statistics,
    embed_value,
    fit,
    fit_corpus,
    fit_until_settled,
    kind_moments,
)
from whiten_export.graph.builder import reopen_graph
from whiten_export.graph.head import LAYERS_OUTPUT, set_shares
from whiten_export.pipeline.align import Reference, align_with
from whiten_export.pipeline.plan import Plan, is_tuned
from whiten_export.pipeline.recipe import WhiteningChoice
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.records import AlignmentRecord, ChoiceRecord, Source
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.files.pairs import Pairs
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, choose_by_pairs, choose_by_rules, soft_weight
from whiten_whitening.layer_weights import learn_weights
from whiten_whitening.maps import ADVISED_RATIO, WhiteningMap
from whiten_whitening.moments import Float64Array, Moments

_LAST_LATIN = "\u024f"
"""Last letter of the block Latin Extended-B."""

_OTHER_SCRIPTS = 0.15
"""Share of tokens in other scripts from which a model counts as multilingual: bert-base-uncased has 0.05."""


@dataclass(frozen=True)
class Decision:
    """Holds the whitening of an export."""

    fitted: WhiteningMap | None  # the affine map; None for no whitening
    statistics: Statistics | None  # statistics that the map was fitted on; None if none was fitted
    choice: ChoiceRecord | None  # the choice and its reason, where it was left to the export; otherwise None
    alignment: AlignmentRecord | None = None  # how the map was turned onto that of another bundle; otherwise None


def fit_whitening(
    plan: Plan, graph: Path, tokenizer: Tokenizer, options: SessionOptions, report: Reporter
) -> tuple[Plan, Decision]:
    """Return the whitening that the plan asks for, and the plan without one where none suits."""
    if plan.corpus is None:
        return plan, Decision(None, None, _record(plan.settled, None))
    asked = plan.recipe.whitening
    whole = asked.all_sentences or asked.max_sentences is not None
    report.stage(f"fitting on {plan.sentences:,} sentences{'' if whole else ' at most'}")
    if BUILTIN_CORPUS in plan.recipe.whitening.sources and is_multilingual(plan.model.tokenizer.json):
        report.stage(
            f"{BUILTIN_CORPUS} is English, but the model knows other scripts: add --corpus FILE in your languages"
        )
    choice, sif = None, plan.pooling == "sif"
    with plan.embedder(graph, tokenizer, options, UNWHITENED_OUTPUT) as embedder:
        choose = _chooser(plan, embedder) if asked.method == "auto" else None
        with report.bar("sentences", plan.sentences) as bar:
            if asked.all_sentences:
                statistics = fit_corpus(plan.corpus, embedder, UNWHITENED_OUTPUT, bar)
            else:
                spec_of = (lambda moments: choose(moments).spec) if choose else lambda moments: asked.spec
                statistics = fit_until_settled(plan.corpus, embedder, UNWHITENED_OUTPUT, spec_of, sif, bar)
    spec = asked.spec
    if choose:
        choice = choose(statistics.moments)
        spec = choice.spec
    fitted, alignment = fit(statistics.moments, spec, sif), None
    if fitted is not None:
        fitted, alignment = finish_map(fitted, statistics, plan.reference, report)
    elif plan.reference is not None:
        why = choice.why if choice else "none was fitted"
        raise UsageError(f"there is no whitening to align to {plan.reference.path}: {why}")
    elif choose:
        plan = dataclasses.replace(plan, whitens=False)
    return plan, Decision(fitted, statistics, _record(choice, plan.pairs), alignment)


def finish_map(
    fitted: WhiteningMap, statistics: Statistics, reference: Reference | None, report: Reporter
) -> tuple[WhiteningMap, AlignmentRecord | None]:
    """Report what is weak about a map, and turn it onto that of a reference, if there is one."""
    warn_of_few(fitted, statistics, report)
    warn_of_rank(fitted, report)
    return (fitted, None) if reference is None else align_with(reference, fitted, statistics, report)


def warn_of_few(fitted: WhiteningMap, statistics: Statistics, report: Reporter) -> None:
    """Warn of a corpus that is smaller than advised for a map that whitens, unless its fit stopped before the end."""
    n, width = statistics.moments.n, len(fitted.mean)
    if fitted.spec is None or not fitted.spec.beta or statistics.settled is not None or n >= ADVISED_RATIO * width:
        return
    if any(source.name == BUILTIN_CORPUS for source in statistics.corpus):
        better = "give more of them"
    else:
        better = f"for English, {BUILTIN_CORPUS} is better, or both together (--corpus FILE --corpus {BUILTIN_CORPUS})"
    report.warn(
        f"{n:,} sentences for {width} dimensions are few, {ADVISED_RATIO * width:,} or more are advised: {better}"
    )


def warn_of_rank(fitted: WhiteningMap, report: Reporter) -> None:
    """Warn if more dimensions are kept than the covariance's rank; a rank of d - 1 is usual, and gets no warning."""
    width, kept = fitted.weight.shape
    if kept > fitted.rank and (kept < width or fitted.rank < width - 1):
        report.warn(f"only {fitted.rank} of {kept} dimensions carry something; the others come out near 0")


def _chooser(plan: Plan, embedder: Embedder) -> Callable[[Moments], Choice]:
    """Return the function that chooses a whitening for moments; the pairs of the plan are embedded once."""
    asked, pairs, sif = plan.recipe.whitening, plan.pairs, plan.pooling == "sif"
    if pairs is None:
        kinds = None if BUILTIN_CORPUS in asked.sources else kind_moments(embedder, UNWHITENED_OUTPUT)
        return lambda moments: _choose_by_rules(plan, moments, kinds)
    first, second = (embed_value(texts, embedder, UNWHITENED_OUTPUT) for texts in (pairs.first, pairs.second))
    return lambda moments: choose_by_pairs(
        lambda spec: fit(moments, spec, sif), first, second, pairs.scores, asked.dim, asked.shrinkage
    )


def _choose_by_rules(plan: Plan, moments: Moments, kinds: Mapping[str, Moments] | None) -> Choice:
    weight = soft_weight(moments, kinds)
    if plan.pooling == "sif":  # what is left to whiten
        moments = moments.without_components(moments.common_components(1))
    return by_rules(moments, plan.recipe.whitening, plan.model.record, plan.layers, weight)


def by_rules(
    moments: Moments, asked: WhiteningChoice, source: Source, layers: tuple[int, ...], weight: float
) -> Choice:
    """Choose what was left open about the whitening of the vectors of some layers of a model."""
    tuned = is_tuned(source, layers)
    other_layers_tuned = source.sentence_similarity and not tuned
    return choose_by_rules(moments, asked.dim, asked.shrinkage, tuned, weight, other_layers_tuned)


def _record(choice: Choice | None, pairs: Pairs | None) -> ChoiceRecord | None:
    if choice is None:
        return None
    return ChoiceRecord(why=choice.why, pairs=pairs.record if pairs else None, candidates=choice.candidates)


def is_multilingual(tokenizer_json: str) -> bool:
    """Return whether many tokens of a vocabulary, the content of `tokenizer.json`, have letters beyond Latin script."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    size = tokenizer.get_vocab_size()
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(0, size, max(1, size // 8000))]
    other = sum(any(letter.isalpha() and letter > _LAST_LATIN for letter in text) for text in texts)
    return bool(texts) and other / len(texts) >= _OTHER_SCRIPTS


def weigh_layers(
    plan: Plan,
    graph: ir.Model,
    paths: tuple[Path, Path],
    tokenizer: Tokenizer,
    options: SessionOptions,
    report: Reporter,
) -> tuple[Plan, ir.Model]:
    """Return the plan and the graph with the weights of layers that suit the pairs, if they are to be learned."""
    pairs = plan.pairs
    if pairs is None or not plan.weighs:
        return plan, graph
    report.stage(f"weighing layers by {len(pairs.scores):,} pairs")
    with plan.embedder(paths[0], tokenizer, options, LAYERS_OUTPUT) as embedder:
        weights = learn_weights(*_by_layer(pairs, embedder, len(plan.layers)), pairs.scores)
    if weights is None:
        report.stage("layers weigh the same: no other weights are better on these pairs")
    else:
        said = ", ".join(f"layer {layer}: {weight:g}" for layer, weight in zip(plan.layers, weights, strict=True))
        report.stage(f"layers are averaged with weights ({said}){_unused(plan.layers, weights)}")
        plan = plan.with_layer_weights(weights)
    set_shares(graph, plan.composition.shares)
    return plan, reopen_graph(graph, paths[1])


def _by_layer(pairs: Pairs, embedder: Embedder, count: int) -> tuple[Float64Array, Float64Array]:
    """Return the vectors of the first and the second sentences by layer, [layers, n, d]."""
    first, second = (embed_value(texts, embedder, LAYERS_OUTPUT) for texts in (pairs.first, pairs.second))
    return tuple(rows.reshape(len(rows), count, -1).swapaxes(0, 1) for rows in (first, second))  # type: ignore[return-value]


def _unused(layers: Sequence[int], weights: Sequence[float]) -> str:
    used = [str(layer) for layer, weight in zip(layers, weights, strict=True) if weight > 0]
    return "" if len(used) == len(layers) else f"; --layers {','.join(used)} with the same --dev gives a smaller graph"
