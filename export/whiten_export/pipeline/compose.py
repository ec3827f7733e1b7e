"""Decide how hidden states become a vector: what is kept of an embedding model as published, and what is replaced."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from whiten_export.pipeline.recipe import GraphChoice, Recipe, WhiteningChoice
from whiten_export.proof.reference import Composition, Module
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.choice import resolve_layers
from whiten_runtime.bundle.records import Similarity, pooling_modes
from whiten_runtime.errors import UsageError


@dataclass(frozen=True)
class Own:
    """Describes how the authors of a model make a vector of a text."""

    layers: tuple[int, ...]  # indices into the hidden states
    pooling: str  # pooling over the tokens
    layer_weights: tuple[float, ...] | None = None  # weights of the layers; None for equal ones
    include_prompt: bool = True  # whether the tokens of a prompt take part in the pooling
    modules: tuple[Module, ...] = ()  # modules after the pooling
    normalize: bool = False  # whether vectors are divided by their L2 norm at the end
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default_prompt_name: str | None = None  # name of the prompt that texts get if none is asked for
    similarity_fn_name: Similarity = "cosine"  # similarity of two vectors
    dimensions: tuple[int, ...] = ()  # numbers of leading coordinates to which vectors may be cut
    route: str | None = None  # route of a Router; None without one


@dataclass(frozen=True)
class Composed:
    """Holds the decisions about an export, with all defaults resolved."""

    recipe: Recipe  # recipe with its pooling, method of whitening and normalisation
    composition: Composition  # how hidden states become the vector that is whitened
    own: Own | None  # how the model's authors make a vector; None for a model that was not made for sentence vectors
    keeps_modules: bool  # whether layers, pooling and modules are those of the authors
    as_published: bool  # whether the finished vector is that of the authors
    remark: str | None  # what is kept and what is replaced, in one line; None if there is nothing to say
    normalize: bool | None = None  # normalisation that was asked for; None if it was left to the model
    name: str = ""  # name of the model, for the remark


def compose(recipe: Recipe, checkpoint: Checkpoint, model: TokenModel) -> Composed:
    """Resolve layers, pooling, modules, whitening and normalisation.

    An embedding model of which neither layers nor a whitening are named is exported as its authors publish it. The
    modules after its pooling belong to its own layers and pooling: they are kept with these, before a whitening, and
    left out otherwise. A normalisation at the end is replaced by a whitening.
    """
    source, whitening, graph = recipe.source, recipe.whitening, recipe.graph
    count = model.record.num_hidden_layers
    own = _own(checkpoint, count)
    usual = model.default_layers if own is None else own.layers
    layers = resolve_layers(usual if source.layers is None else source.layers, count, model.layers)
    pooling = source.pooling or checkpoint.pooling
    if own is not None and not own.include_prompt and "pooler" in pooling_modes(pooling):
        raise UsageError(f"pooling pooler takes the first token, but '{checkpoint.name}' leaves prompts out")
    keeps = own is not None and layers == own.layers and pooling == own.pooling
    method = whitening.method
    if method == "default":
        as_is = own is not None and source.layers is None and not whitening.named
        method = None if as_is else whitening.usual
    normalize = _normalizes(own, keeps and method is None, graph.normalize)
    if graph.vector_type == "int8" and own is not None and own.similarity_fn_name != "cosine":
        raise UsageError(
            f"vectors of int8 keep cosines alone, but '{checkpoint.name}' is compared by {own.similarity_fn_name}; "
            "leave vector-type out"
        )
    resolved = dataclasses.replace(
        recipe,
        source=dataclasses.replace(source, pooling=pooling),
        whitening=dataclasses.replace(whitening, method=method),
        graph=_graph(graph, normalize),
    )
    composition = Composition(layers, pooling, include_prompt=own is None or own.include_prompt)
    if own is not None and keeps:
        composition = dataclasses.replace(composition, layer_weights=own.layer_weights, modules=own.modules)
    as_published = keeps and own is not None and method is None and normalize == own.normalize
    remark = None if own is None or as_published else _remark(checkpoint.name, own, composition, resolved, keeps)
    return Composed(resolved, composition, own, keeps, as_published, remark, graph.normalize, checkpoint.name)


def unwhitened(composed: Composed) -> Composed:
    """Return the decisions for an export that turned out to need no whitening: Normalize is kept after all."""
    own, recipe = composed.own, composed.recipe
    normalize = _normalizes(own, composed.keeps_modules, composed.normalize)
    as_published = own is not None and composed.keeps_modules and normalize == own.normalize
    recipe = dataclasses.replace(recipe, graph=_graph(recipe.graph, normalize))
    as_is = dataclasses.replace(recipe, whitening=WhiteningChoice(None))
    remark = None
    if own is not None and not as_published:
        remark = _remark(composed.name, own, composed.composition, as_is, composed.keeps_modules)
    return dataclasses.replace(composed, recipe=recipe, as_published=as_published, remark=remark)


def _normalizes(own: Own | None, keeps: bool, asked: bool | None) -> bool:
    """Return the normalisation that was asked for, else that of the authors if their vector is kept."""
    return own is not None and own.normalize and keeps if asked is None else asked


def _graph(graph: GraphChoice, normalize: bool) -> GraphChoice:
    """Return the choices with the normalisation decided; rounding to int8, with a scale of its own, takes its place."""
    return dataclasses.replace(graph, normalize=normalize and graph.vector_type == "float32")


def _own(checkpoint: Checkpoint, count: int) -> Own | None:
    if not checkpoint.embeds_sentences:
        return None
    published, entry = checkpoint.published, checkpoint.entry
    prompts = dict(entry.prompts) if entry is not None else {}
    dimensions = entry.dimensions if entry is not None else ()
    default = entry.default_prompt if entry is not None else None
    if published is None:
        assert entry is not None
        return Own(
            layers=(count,),
            pooling=entry.pooling,
            normalize=entry.normalize,
            prompts=prompts,
            default_prompt_name=default,
            dimensions=dimensions,
        )
    layers: tuple[int, ...] = (count,)
    weights: tuple[float, ...] | None = None
    if published.first_layer is not None and published.layer_weights is not None:
        layers, weights = tuple(range(published.first_layer, count + 1)), published.layer_weights
        if len(weights) != len(layers):
            raise UsageError(
                f"'{checkpoint.model}' weighs {len(weights)} layers from layer {published.first_layer} on, but its "
                f"network has {count}; wanted {len(layers)} weights"
            )
    return Own(
        layers=layers,
        pooling=published.pooling,
        layer_weights=weights,
        include_prompt=published.include_prompt,
        modules=published.modules,
        normalize=published.normalize,
        prompts=prompts | dict(published.prompts),
        default_prompt_name=published.default_prompt_name or default,
        similarity_fn_name=published.similarity_fn_name,
        dimensions=dimensions,
        route=published.route,
    )


def _remark(name: str, own: Own, composition: Composition, recipe: Recipe, keeps_modules: bool) -> str:
    """Say in one line what is kept of a model as published, and what is replaced by what."""
    whitening, normalize = recipe.whitening.method, bool(recipe.graph.normalize)
    kept: list[str] = []
    replaced: list[str] = []

    def note(same: bool, theirs: str, ours: str) -> None:
        if same:
            kept.append(theirs)
        else:
            replaced.append(f"{theirs} by {ours}")

    note(composition.layers == own.layers, _layers(own.layers), _layers(composition.layers))
    note(composition.pooling == own.pooling, f"{own.pooling} pooling", composition.pooling)
    if own.modules:
        note(keeps_modules, ", ".join(map(str, own.modules)), "nothing, as it belongs to its own layer and pooling")
    replaces_norm = own.normalize and not normalize
    if own.normalize:
        note(normalize, "Normalize", "nothing" if whitening is None else "the whitening")
    if own.prompts:
        kept.append(f"{len(own.prompts)} prompt{'s' if len(own.prompts) > 1 else ''}")
    added = ["the whitening"] if whitening is not None and not replaces_norm else []
    added += ["Normalize"] if normalize and not own.normalize else []
    parts = (("kept", kept), ("replaced", replaced), ("added", added))
    said = ". ".join(f"{verb.capitalize()} {'; '.join(what)}" for verb, what in parts if what)
    return f"{name} as published: {said[0].lower()}{said[1:]}."


def _layers(layers: tuple[int, ...]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
