"""Fit the whitening of an export, and the weights of its layers: what was asked for, or what suits the corpus."""

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
    warn_of_few,
    warn_of_rank,
)
from whiten_export.graph.builder import reopen_graph
from whiten_export.graph.head import LAYERS_OUTPUT, set_shares
from whiten_export.pipeline.align import align_with, report_alignment
from whiten_export.pipeline.plan import Plan
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.records import AlignmentRecord, ChoiceRecord
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.files.pairs import Pairs
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, check_kinds, choose_by_pairs, choose_by_rules, soft_weight
from whiten_whitening.layer_weights import learn_weights
from whiten_whitening.maps import WhiteningMap
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


def decide(plan: Plan, graph: Path, tokenizer: Tokenizer, options: SessionOptions, report: Reporter) -> Decision:
    """Fit the whitening that the plan asks for."""
    if plan.corpus is None:
        return Decision(None, None, _record(plan.settled, None))
    asked = plan.recipe.whitening
    whole = asked.all_sentences or asked.max_sentences is not None
    report.stage(f"fitting on {plan.sentences:,} sentences{'' if whole else ' at most'}")
    if BUILTIN_CORPUS in plan.recipe.whitening.sources and is_multilingual(plan.model.tokenizer.json):
        report.stage(
            f"{BUILTIN_CORPUS} is English, but the model knows other scripts: add --corpus FILE in your languages"
        )
    choice, kinds, sif = None, None, plan.pooling == "sif"
    pad = plan.model.tokenizer.pad_token_id
    with load_graph(graph, tokenizer, pad, options, UNWHITENED_OUTPUT, plan.prompts) as embedder:
        if BUILTIN_CORPUS not in asked.sources:
            kinds = kind_moments(embedder, UNWHITENED_OUTPUT)
        choose = _chooser(plan, embedder, kinds) if asked.method == "auto" else None
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
    fitted = fit(statistics.moments, spec, sif)
    if fitted is not None:
        warn_of_few(fitted, statistics, report)
        warn_of_rank(fitted, report)
        if kinds is not None:
            report_kinds(fitted, kinds, report)
    alignment = None
    if plan.reference is not None:
        if fitted is None:
            why = choice.why if choice else "none was fitted"
            raise UsageError(f"there is no whitening to align to {plan.reference.path}: {why}")
        fitted, alignment = align_with(plan.reference, fitted, statistics)
        report_alignment(alignment, plan.reference, report)
    return Decision(fitted, statistics, _record(choice, plan.pairs), alignment)


def report_kinds(fitted: WhiteningMap, kinds: Mapping[str, Moments], report: Reporter) -> None:
    """Report the kinds of text that a map does harm to, of which the corpus has too little."""
    if hurt := [check.kind for check in check_kinds(fitted, kinds) if check.hurt]:
        which = "general English" if len(hurt) == len(kinds) else f"texts that your corpus lacks ({', '.join(hurt)})"
        report.stage(f"less good for {which}; if you embed such texts, add --corpus {BUILTIN_CORPUS}")


def _chooser(plan: Plan, embedder: Embedder, kinds: Mapping[str, Moments] | None) -> Callable[[Moments], Choice]:
    """Return the function that chooses a whitening for moments; the pairs of the plan are embedded once."""
    asked, pairs, sif = plan.recipe.whitening, plan.pairs, plan.pooling == "sif"
    if pairs is None:
        return lambda moments: _choose_by_rules(plan, moments, kinds)
    first, second = (embed_value(texts, embedder, UNWHITENED_OUTPUT) for texts in (pairs.first, pairs.second))
    return lambda moments: choose_by_pairs(
        lambda spec: fit(moments, spec, sif), first, second, pairs.scores, asked.dim, asked.shrinkage
    )


def _choose_by_rules(plan: Plan, moments: Moments, kinds: Mapping[str, Moments] | None) -> Choice:
    asked, weight = plan.recipe.whitening, soft_weight(moments, kinds)
    if plan.pooling == "sif":  # what is left to whiten
        moments = moments.without_components(moments.common_components(1))
    return choose_by_rules(moments, asked.dim, asked.shrinkage, plan.tuned, weight, plan.other_layers_tuned)


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
    """Return the plan with the weights that suit its pairs best, and the graph with these weights."""
    pairs = plan.pairs
    assert pairs is not None
    report.stage(f"weighing layers by {len(pairs.scores):,} pairs")
    pad = plan.model.tokenizer.pad_token_id
    with load_graph(paths[0], tokenizer, pad, options, LAYERS_OUTPUT, plan.prompts) as embedder:
        weights = learn_weights(*_by_layer(pairs, embedder, len(plan.layers)), pairs.scores)
    if weights is None:
        report.stage("layers weigh the same: no other weights are better on these pairs")
        set_shares(graph, plan.composition.shares)
        return plan, reopen_graph(graph, paths[1])
    said = ", ".join(f"layer {layer}: {weight:g}" for layer, weight in zip(plan.layers, weights, strict=True))
    report.stage(f"layers are averaged with weights ({said}){_unused(plan.layers, weights)}")
    weighted = plan.with_layer_weights(weights)
    set_shares(graph, weighted.composition.shares)
    return weighted, reopen_graph(graph, paths[1])


def _by_layer(pairs: Pairs, embedder: Embedder, count: int) -> tuple[Float64Array, Float64Array]:
    """Return the vectors of the first and the second sentences by layer, [layers, n, d]."""
    first, second = (embed_value(texts, embedder, LAYERS_OUTPUT) for texts in (pairs.first, pairs.second))
    return tuple(rows.reshape(len(rows), count, -1).swapaxes(0, 1) for rows in (first, second))  # type: ignore[return-value]


def _unused(layers: Sequence[int], weights: Sequence[float]) -> str:
    used = [str(layer) for layer, weight in zip(layers, weights, strict=True) if weight > 0]
    return "" if len(used) == len(layers) else f"; --layers {','.join(used)} with the same --dev gives a smaller graph"
