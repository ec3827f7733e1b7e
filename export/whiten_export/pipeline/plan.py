"""Plan an export before weights are loaded: check a recipe, and decide what is kept of a model as published."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from whiten_export.pipeline.align import Reference, open_reference
from whiten_export.pipeline.recipe import Recipe, bundle_name, check_similarity
from whiten_export.proof.reference import Composition
from whiten_export.sources.choice import resolve_layers
from whiten_export.sources.describe.checkpoint import Checkpoint, resolve
from whiten_export.sources.describe.published import Published
from whiten_export.sources.model import TokenModel
from whiten_export.sources.opening import USUAL_LENGTH, choose_max_seq_length, open_model
from whiten_export.writing.staging import check_place
from whiten_runtime.bundle.records import Pooling, Similarity, Source, pooling_modes
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.files.pairs import Pairs, read_pairs
from whiten_runtime.inference.embedder import Embedder, Prompts
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import TUNED, Choice
from whiten_whitening.maps import check_for_sif, check_sample_count

_FOR_FITTING = ("corpus", "column", "max_sentences", "all_sentences", "shrinkage")
"""Choices that mean nothing where no whitening is fitted."""


@dataclass(frozen=True)
class Plan:
    """Describes what an export will do."""

    recipe: Recipe  # recipe of the export, with its pooling and the method of its whitening
    checkpoint: Checkpoint  # files of the model, and how its authors make a vector of a text
    model: TokenModel  # model to export
    composition: Composition  # how hidden states become the vector that is whitened
    keeps_modules: bool  # whether layers, pooling and modules are those of the model's authors
    whitens: bool  # whether there is a whitening, as far as that is decided
    target: Path = Path()  # the bundle's directory
    max_seq_length: int = 0  # maximum number of tokens of a text
    corpus: Corpus | None = None  # sentences that the whitening is fitted on, or None
    sentences: int = 0  # number of sentences of the corpus
    pairs: Pairs | None = None  # pairs with scores by which the whitening is chosen, or None
    settled: Choice | None = None  # choice of the whitening, if it was left to the export and is already made
    reference: Reference | None = None  # bundle whose stored vectors are to stay usable; None for none

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
    def own(self) -> Published | None:
        """Return how the model's authors make a vector; None for a model that was not made for sentence vectors."""
        return self.checkpoint.own

    @property
    def as_published(self) -> bool:
        """Return whether the finished vector is that of the model's authors, but for rounding."""
        own = self.own
        return own is not None and self.keeps_modules and not self.whitens and self._norm == own.normalize

    @property
    def normalize(self) -> bool:
        """Return whether vectors are divided by their L2 norm; rounding to int8 has a scale in its place."""
        return self._norm and self.recipe.graph.round_to == "float32"

    @property
    def _norm(self) -> bool:
        """Return the normalisation that was asked for, else that of the authors if their vector is kept."""
        kept = self.own is not None and self.own.normalize and self.keeps_modules and not self.whitens
        return kept if self.recipe.graph.normalize is None else self.recipe.graph.normalize

    @property
    def tuned(self) -> bool:
        """Return whether the top layer is among the layers, and was fine-tuned for sentence similarity."""
        return is_tuned(self.model.record, self.layers)

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

    def embedder(self, graph: Path, tokenizer: Tokenizer, options: SessionOptions, value: str) -> Embedder:
        """Return what computes a value of a graph of this export for texts."""
        return load_graph(graph, tokenizer, self.model.tokenizer.pad_token_id, options, value, self.prompts)

    @property
    def similarity_fn_name(self) -> Similarity:
        """Return the similarity that the model's authors compare vectors by."""
        return "cosine" if self.own is None else self.own.similarity_fn_name

    @property
    def matryoshka_dimensions(self) -> tuple[int, ...]:
        """Return the numbers of leading coordinates to which vectors without a whitening may be cut."""
        entry, declared = self.checkpoint.entry, self.recipe.source.matryoshka
        return declared or (entry.dimensions if entry is not None and self.keeps_modules else ())

    @property
    def prompts(self) -> Prompts:
        """Return the prompts of the model."""
        return self.checkpoint.prompts

    def with_layer_weights(self, weights: tuple[float, ...] | None) -> "Plan":
        """Return the plan of an export whose layers are averaged with these weights."""
        return dataclasses.replace(self, composition=dataclasses.replace(self.composition, layer_weights=weights))


def is_tuned(source: Source, layers: tuple[int, ...]) -> bool:
    """Return whether a model's top layer is the last of these layers, and was fine-tuned for sentence similarity."""
    return source.sentence_similarity and layers[-1:] == (source.num_hidden_layers,)


def open_source(recipe: Recipe, report: Reporter) -> TokenModel:
    """Find the model of a recipe, and read everything about it but its weights."""
    source = recipe.source
    report.stage(f"reading {source.model}")
    checkpoint = resolve(source.model, source.revision, source.trust_remote_code, source.route)
    source = dataclasses.replace(source, pooling=source.pooling or checkpoint.pooling)
    if source.pooling == "sif":
        check_for_sif(recipe.whitening.shrinkage)
    return open_model(checkpoint, source, report)


def choose(recipe: Recipe, model: TokenModel, out: Path | None, replace: bool, report: Reporter) -> Plan:
    """Resolve every choice of a recipe, and report mistakes before any long work."""
    checkpoint = model.checkpoint
    plan = compose(recipe, checkpoint, model)
    if (dim := recipe.whitening.dim) is not None and dim > plan.width:
        raise UsageError(
            f"dim is {dim}, but the model's vectors have {plan.width} dimensions; wanted 1 to {plan.width}"
        )
    target = out or Path("bundles") / bundle_name(
        checkpoint.name, plan.recipe, plan.layers, plan.normalize, plan.as_published
    )
    if out is None:
        check_place(target, replace)
    plan = dataclasses.replace(plan, target=target, max_seq_length=_length(plan, report))
    if not model.supported:
        report.warn(f"architecture '{model.record.model_type}' has not been tried; the parity gate will decide")
    plan = _settled(_with_reference(plan))
    if plan.own is not None and (left := left_out(plan, plan.own)):
        report.stage(f"left out, as made for the model's own layer and pooling: {', '.join(left)}")
    whitening, spec = plan.recipe.whitening, plan.recipe.whitening.spec
    if plan.recipe.fits and plan.settled is None:
        corpus = Corpus(whitening.sources, whitening.column, whitening.max_sentences)
        plan = dataclasses.replace(plan, corpus=corpus, sentences=corpus.count())
    _check_matryoshka(plan)
    if spec:
        check_sample_count(plan.sentences, plan.width, spec)
    if spec and spec.beta and plan.tuned:
        report.warn(
            f"{checkpoint.name} was fine-tuned for sentence similarity; whitening its top layer is measured to "
            "make similarities worse: compare with --whitening none"
        )
    return plan


def _check_matryoshka(plan: Plan) -> None:
    """Check the dimensions that a caller says the model's vectors may be cut to."""
    declared = plan.recipe.source.matryoshka
    if declared is None:
        return
    given = f"matryoshka is {', '.join(map(str, declared))}"
    if plan.corpus is not None:
        raise UsageError(
            f"{given}, but a whitening mixes the model's coordinates; pass whitening none, or leave matryoshka out: "
            "vectors whitened with pca or pca-cor can be cut anywhere"
        )
    if plan.own is not None and not plan.keeps_modules:
        raise UsageError(
            f"{given}, but layers or pooling are not those that the model was trained with; leave layers and pooling "
            "out, or matryoshka"
        )
    if max(declared) > plan.width:
        raise UsageError(f"{given}, but the model's vectors have {plan.width} dimensions; wanted 1 to {plan.width}")


def compose(recipe: Recipe, checkpoint: Checkpoint, model: TokenModel) -> Plan:
    """Resolve layers, pooling, modules and the method of the whitening.

    The modules after a published model's pooling are kept with its own layers and pooling, and left out otherwise.
    """
    source, method, own = recipe.source, recipe.whitening.method, checkpoint.own
    count = model.record.num_hidden_layers
    own_layers = _own_layers(checkpoint, count)
    usual = model.default_layers if own is None else own_layers
    layers = resolve_layers(usual if source.layers is None else source.layers, count, model.layers)
    pooling = source.pooling or checkpoint.pooling
    if own is not None and not own.include_prompt and "pooler" in pooling_modes(pooling):
        raise UsageError(f"pooling pooler takes the first token, but '{checkpoint.name}' leaves prompts out")
    keeps = own is not None and layers == own_layers and pooling == own.pooling
    if method == "default":
        as_is = own is not None and source.layers is None and not recipe.whitening.named
        method = None if as_is else recipe.whitening.usual
    if own is not None:
        check_similarity(recipe.graph.round_to, own.similarity_fn_name, checkpoint.name)
    resolved = dataclasses.replace(
        recipe,
        source=dataclasses.replace(source, pooling=pooling),
        whitening=dataclasses.replace(recipe.whitening, method=method),
    )
    composition = Composition(layers, pooling, include_prompt=own is None or own.include_prompt)
    if own is not None and keeps:
        composition = dataclasses.replace(composition, layer_weights=own.layer_weights, modules=own.modules)
    return Plan(resolved, checkpoint, model, composition, keeps, whitens=method is not None)


def _own_layers(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the layers of which the model's authors make a vector."""
    own = checkpoint.own
    if own is None or own.first_layer is None or own.layer_weights is None:
        return (count,)
    layers = tuple(range(own.first_layer, count + 1))
    if len(own.layer_weights) != len(layers):
        raise UsageError(
            f"'{checkpoint.model}' weighs {len(own.layer_weights)} layers from layer {own.first_layer} on, but its "
            f"network has {count}; wanted {len(layers)} weights"
        )
    return layers


def _length(plan: Plan, report: Reporter) -> int:
    """Return the maximum number of tokens of a text; warn where it is not what the model's users expect."""
    model, checkpoint, asked = plan.model, plan.checkpoint, plan.recipe.source.max_length
    length = choose_max_seq_length(checkpoint, model.positions, model.tokenizer, asked)
    if (limit := model.batch_limit) is not None and length > limit.tokens:
        raise UsageError(
            f"max-length is {length}, but a text of more than {limit.tokens} tokens would change the vectors of the "
            f"others of its batch, by {checkpoint.name}'s {limit.why}; pass --max-length {limit.tokens}, or less"
        )
    cut = model.positions is not None and model.positions > length >= USUAL_LENGTH
    if asked is None and checkpoint.published is None and cut:
        report.warn(
            f"texts will be cut to {length} tokens of the {model.positions} that {checkpoint.name} takes; "
            "--max-length takes more, and attention's memory grows with its square"
        )
    limits = (model.positions, model.tokenizer.stated_length, asked)
    if checkpoint.published is not None and checkpoint.published.max_seq_length is None and not any(limits):
        report.warn(
            f"{checkpoint.name} states no maximum length, and sentence-transformers cuts no text of it; here texts are "
            f"cut to {length} tokens: --max-length takes more"
        )
    return length


def _with_reference(plan: Plan) -> Plan:
    """Return the plan with the bundle to align with, whose dimension and layer weights it takes."""
    whitening = plan.recipe.whitening
    if whitening.align_to is None:
        return plan
    reference = open_reference(whitening.align_to)
    plan = dataclasses.replace(plan, reference=reference)
    if whitening.dim is None:
        whitening = dataclasses.replace(whitening, dim=reference.manifest.dimension)
        plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, whitening=whitening))
    same = (reference.manifest.layers, reference.manifest.pooling) == (plan.layers, plan.pooling)
    if same and plan.composition.layer_weights is None and not plan.composition.modules:
        plan = plan.with_layer_weights(reference.manifest.layer_weights)
    return plan


def _settled(plan: Plan) -> Plan:
    """Return the plan with the pairs of `dev`, or without a whitening where "auto" needs nothing more to decide."""
    whitening = plan.recipe.whitening
    if whitening.dev is not None:
        return dataclasses.replace(plan, pairs=read_pairs(Path(whitening.dev)))
    if whitening.method != "auto" or not plan.tuned or whitening.dim is not None or plan.reference is not None:
        return plan
    if unused := [name for name in _FOR_FITTING if getattr(whitening, name) not in (None, "none", 0)]:
        raise UsageError(f"{unused[0].replace('_', '-')} was given, but nothing is fitted: {TUNED.why}")
    return dataclasses.replace(plan, settled=TUNED, whitens=False)


def left_out(plan: Plan, own: Published) -> list[str]:
    """Name the modules that other layers or another pooling leave out; a whitening takes the place of Normalize."""
    if plan.keeps_modules:
        return []
    scaled = plan.whitens or plan.normalize
    return [*map(str, own.modules), *(["Normalize"] if own.normalize and not scaled else [])]
