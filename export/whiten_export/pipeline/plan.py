"""Plan an export before weights are loaded: check a recipe against model, corpus and directory."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from whiten_export.pipeline.align import Reference, open_reference
from whiten_export.pipeline.compose import Composed, compose, unwhitened
from whiten_export.pipeline.recipe import Recipe, bundle_name
from whiten_export.proof.reference import Composition
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoints.checkpoint import Checkpoint, resolve
from whiten_export.sources.opening import USUAL_LENGTH, choose_max_seq_length, open_model
from whiten_export.writing.staging import check_target
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import Pooling, Similarity
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.files.pairs import Pairs, read_pairs
from whiten_runtime.files.replacing import check_folder_place
from whiten_runtime.inference.prompts import Prompts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, fine_tuned
from whiten_whitening.maps import check_for_sif, check_sample_count

_FOR_FITTING = ("corpus", "column", "max_sentences", "all_sentences", "shrinkage")
"""Choices that mean nothing where no whitening is fitted."""


@dataclass(frozen=True)
class Plan:
    """Describes what an export will do."""

    recipe: Recipe  # recipe of the export
    model: TokenModel  # model to export
    composed: Composed  # how hidden states become a vector, and what is kept of the model as published
    max_seq_length: int  # maximum number of tokens of a text
    corpus: Corpus | None  # sentences that the whitening is fitted on, or None
    sentences: int  # number of sentences of the corpus
    pairs: Pairs | None  # pairs with scores by which the whitening is chosen, or None
    settled: Choice | None  # choice of the whitening, if it was left to the export and is already made; otherwise None
    tuned: bool  # whether the top layer is among the layers, and was fine-tuned for sentence similarity
    other_layers_tuned: bool  # whether the model was fine-tuned for it, but its top layer is not among the layers
    reference: Reference | None  # bundle whose stored vectors are to stay usable; None for none
    target: Path  # the bundle's directory

    @property
    def composition(self) -> Composition:
        """Return how hidden states become the vector that is whitened."""
        return self.composed.composition

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the indices into the hidden states, ascending."""
        return self.composition.layers

    @property
    def pooling(self) -> Pooling:
        """Return the pooling over the tokens."""
        return self.composition.pooling

    @property
    def width(self) -> int:
        """Return the number of coordinates before whitening."""
        return self.composition.width(self.model.record.hidden_size)

    @property
    def weighs(self) -> bool:
        """Return whether the weights of the layers are learned from pairs."""
        composition = self.composition
        several = len(composition.layers) > 1 and composition.layer_weights is None and not composition.modules
        learns = self.recipe.whitening.method == "auto" and self.pairs is not None and self.reference is None
        return learns and several

    def tokenizer(self, path: Path) -> Tokenizer:
        """Return the bundle's tokenizer, from its `tokenizer.json`."""
        return Tokenizer(path, self.max_seq_length, self.model.tokenizer.truncation_side)

    @property
    def similarity_fn_name(self) -> Similarity:
        """Return the similarity that the model's authors compare vectors by."""
        return "cosine" if self.composed.own is None else self.composed.own.similarity_fn_name

    @property
    def prompts(self) -> Prompts:
        """Return the prompts of the model."""
        own = self.composed.own
        if own is None:
            return Prompts()
        return Prompts(own.prompts, own.default_prompt_name, self.composition.include_prompt)


def check_place(out: Path, replace: bool) -> None:
    """Check, before any work, that a bundle may be written to a directory."""
    check_target(out, replace)
    check_folder_place(out, "another --out")


def open_source(recipe: Recipe, report: Reporter) -> tuple[Checkpoint, TokenModel]:
    """Find the model of a recipe, and read everything about it but its weights."""
    source = recipe.source
    report.stage(f"finding {source.model}")
    checkpoint = resolve(source.model, source.revision, source.trust_remote_code, source.route)
    source = dataclasses.replace(source, pooling=source.pooling or checkpoint.pooling)
    if source.pooling == "sif":
        check_for_sif(recipe.whitening.shrinkage)
    return checkpoint, open_model(checkpoint, source, report)


def choose(
    recipe: Recipe, checkpoint: Checkpoint, model: TokenModel, out: Path | None, replace: bool, report: Reporter
) -> Plan:
    """Resolve every choice of a recipe, and report mistakes before any long work."""
    record = model.record
    composed = compose(recipe, checkpoint, model)
    source = composed.recipe.source
    recipe, whitening = composed.recipe, composed.recipe.whitening
    layers = composed.composition.layers
    count, width = record.num_hidden_layers, composed.composition.width(record.hidden_size)
    if whitening.dim is not None and whitening.dim > width:
        raise UsageError(
            f"dim is {whitening.dim}, but the model's vectors have {width} dimensions; wanted 1 to {width}"
        )
    target = out or Path("bundles") / bundle_name(checkpoint.name, recipe, layers, composed.as_published)
    check_target(target, replace)
    max_seq_length = choose_max_seq_length(checkpoint, model.positions, model.tokenizer, source.max_length)
    cut = model.positions is not None and model.positions > max_seq_length >= USUAL_LENGTH
    if source.max_length is None and checkpoint.published is None and cut:
        report.warn(
            f"texts will be cut to {max_seq_length} tokens of the {model.positions} that {checkpoint.name} takes; "
            "--max-length takes more, and attention's memory grows with its square"
        )
    limits = (model.positions, model.tokenizer.stated_length, source.max_length)
    if checkpoint.published is not None and checkpoint.published.max_seq_length is None and not any(limits):
        report.warn(
            f"{checkpoint.name} states no maximum length, and sentence-transformers cuts no text of it; here texts are "
            f"cut to {max_seq_length} tokens: --max-length takes more"
        )
    if not model.supported:
        report.warn(f"architecture '{record.model_type}' has not been tried; the parity gate will decide")
    top_is_fine_tuned = record.sentence_similarity and layers[-1] == count
    reference = None if whitening.align_to is None else open_reference(whitening.align_to)
    if reference is not None and whitening.dim is None:
        whitening = dataclasses.replace(whitening, dim=reference.manifest.dimension)
        recipe = dataclasses.replace(recipe, whitening=whitening)
    if reference is not None and _weighs_like(reference.manifest, composed.composition):
        weights = reference.manifest.layer_weights
        composition = dataclasses.replace(composed.composition, layer_weights=weights)
        composed = dataclasses.replace(composed, composition=composition)
    pairs = read_pairs(Path(whitening.dev)) if whitening.dev is not None else None
    settled = None
    needs_map = whitening.dim is not None or reference is not None
    if whitening.method == "auto" and pairs is None and top_is_fine_tuned and not needs_map:
        settled = fine_tuned(checkpoint.name)
        if unused := [name for name in _FOR_FITTING if getattr(whitening, name) not in (None, "none", 0)]:
            raise UsageError(f"{unused[0].replace('_', '-')} was given, but nothing is fitted: {settled.why}")
        report.stage(settled.why)
        composed = unwhitened(composed)
        recipe = composed.recipe
    if composed.remark is not None and not composed.as_published:
        report.stage(composed.remark)
    fits = recipe.fits and settled is None
    corpus = Corpus(whitening.sources, whitening.column, whitening.max_sentences) if fits else None
    sentences = corpus.count() if corpus else 0
    if whitening.spec and (warning := check_sample_count(sentences, width, whitening.spec)):
        report.warn(warning)
    if whitening.spec and whitening.spec.beta and top_is_fine_tuned:
        report.warn(
            f"{checkpoint.name} was fine-tuned for sentence similarity; whitening its top layer is measured to "
            "make similarities worse: compare with --whitening none"
        )
    return Plan(
        recipe=recipe,
        model=model,
        composed=composed,
        max_seq_length=max_seq_length,
        corpus=corpus,
        sentences=sentences,
        pairs=pairs,
        settled=settled,
        tuned=top_is_fine_tuned,
        other_layers_tuned=record.sentence_similarity and not top_is_fine_tuned,
        reference=reference,
        target=target,
    )


def _weighs_like(manifest: Manifest, composition: Composition) -> bool:
    """Return whether a composition without weights of its own can take those of a bundle."""
    same = (manifest.layers, manifest.pooling) == (composition.layers, composition.pooling)
    return same and composition.layer_weights is None and not composition.modules


def with_layer_weights(plan: Plan, weights: tuple[float, ...]) -> Plan:
    """Return the plan of an export whose layers are averaged with these weights."""
    composition = dataclasses.replace(plan.composition, layer_weights=weights)
    return dataclasses.replace(plan, composed=dataclasses.replace(plan.composed, composition=composition))


def without_whitening(plan: Plan) -> Plan:
    """Return the plan of an export whose whitening, which was left to it, turned out to be none."""
    composed = unwhitened(plan.composed)
    return dataclasses.replace(plan, recipe=composed.recipe, composed=composed)
