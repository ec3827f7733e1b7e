"""Apply a recipe to a model before weights are loaded: the draft of the manifest, and the whitening to fit."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whiten_export.pipeline.align import Aligned, open_aligned
from whiten_export.pipeline.recipe import Recipe, bundle_name
from whiten_export.sources.describe.checkpoint import resolve
from whiten_export.sources.layers import resolve_layers
from whiten_export.sources.model import TokenModel
from whiten_export.sources.opening import LONGEST, USUAL_LENGTH, choose_max_seq_length, open_model
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import ChoiceRecord, Source, pooling_modes
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import TUNED
from whiten_whitening.development import Development, check_searched, read_development
from whiten_whitening.maps import check_for_sif, check_sample_count
from whiten_whitening.statistics import warn_of_repeats

_FOR_FITTING = ("corpus", "column", "max_sentences", "shrinkage")
"""Choices that mean nothing where no whitening is fitted."""


@dataclass(frozen=True)
class Fit:
    """Says which whitening to fit, and on what."""

    recipe: Recipe  # the choices, complete; its whitening is a method or "auto", or None for a sif without whitening
    corpus: Corpus  # sentences to fit on
    sentences: int  # number of sentences to fit on
    development: Development | None = None  # pairs with scores, or collections, by which "auto" chooses
    aligned_to: Aligned | None = None  # bundle whose stored vectors are to stay usable


def is_tuned(source: Source, layers: tuple[int, ...]) -> bool:
    """Return whether a model's top layer is the last of these layers, and was fine-tuned for sentence similarity."""
    return source.sentence_similarity and layers[-1:] == (source.num_hidden_layers,)


def open_source(recipe: Recipe, report: Reporter) -> TokenModel:
    """Find the model of a recipe, and read everything about it but its weights."""
    report.stage(f"reading {recipe.model}")
    checkpoint = resolve(recipe.model, recipe.trust_remote_code, recipe.route)
    pooling = recipe.pooling or checkpoint.pooling
    if pooling == "sif":
        check_for_sif(recipe.shrinkage)
    if checkpoint.kind == "words" and pooling not in ("mean", "sif"):
        raise UsageError(f"pooling {pooling} is not for word vectors; wanted mean or sif")
    if checkpoint.kind != "words" and pooling == "sif":
        raise UsageError(f"pooling sif weighs words by their frequency; '{recipe.model}' is not a file of word vectors")
    if "pooler" in pooling_modes(pooling) and checkpoint.kind != "transformers":
        raise UsageError(f"pooling pooler needs the network's own pooler, which '{recipe.model}' does not have")
    return open_model(checkpoint, recipe.trust_remote_code, recipe.device, report)


def complete(recipe: Recipe, source: TokenModel) -> Recipe:
    """Return a recipe with the layers, the pooling and the method of the whitening that it leaves to the model."""
    draft, checkpoint = source.draft, source.checkpoint
    wanted = draft.layers if recipe.layers is None else recipe.layers
    layers = resolve_layers(wanted, source.record.num_hidden_layers, source.layers)
    pooling = recipe.pooling or checkpoint.pooling
    if not draft.include_prompt and "pooler" in pooling_modes(pooling):
        raise UsageError(f"pooling pooler takes the first token, but '{checkpoint.name}' leaves prompts out")
    whitening = recipe.whitening
    if whitening == "default":
        as_published = source.embeds and recipe.layers is None and not recipe.whitening_named
        whitening = None if as_published else recipe.usual_whitening
    completed = dataclasses.replace(recipe, layers=layers, pooling=pooling, whitening=whitening)
    width = _composed(completed, source).unwhitened_width
    if recipe.dim is not None and recipe.dim > width:
        raise UsageError(f"dim is {recipe.dim}, but the model's vectors have {width} dimensions; wanted 1 to {width}")
    return completed


def default_name(recipe: Recipe, source: TokenModel) -> str:
    """Return the name of the bundle of a complete recipe."""
    assert recipe.layers is not None
    draft, whitens = source.draft, recipe.whitening is not None
    as_authors = draft.normalize and not whitens and source.is_authors(recipe.layers, recipe.pooling)
    normalize = as_authors if recipe.normalize is None else recipe.normalize
    same = source.is_authors(recipe.layers, recipe.pooling) and not whitens and normalize == draft.normalize
    return bundle_name(source.checkpoint.name, recipe, recipe.layers, normalize, same)


def apply(recipe: Recipe, source: TokenModel, report: Reporter) -> tuple[Manifest, Fit | None]:
    """Return the manifest of the model's vectors by a complete recipe, and the whitening to fit, if there is one.

    The manifest is that of the bundle if no whitening is fitted; a fit sets what a whitening changes.
    """
    manifest = _composed(recipe, source)
    manifest = msgspec.structs.replace(manifest, max_seq_length=_length(recipe, source, report))
    if not source.supported:
        report.warn(f"architecture '{source.record.model_type}' has not been tried; the parity gate will decide")
    aligned_to = None if recipe.align_to is None else open_aligned(recipe.align_to)
    if aligned_to is not None:
        recipe, manifest = _as_aligned(recipe, manifest, aligned_to)
    development = None if recipe.dev is None else read_development(Path(recipe.dev), report)
    check_searched(development, manifest, bool(recipe.normalize))
    tuned = is_tuned(manifest.source, manifest.layers)
    if tuned and recipe.whitening == "auto" and (recipe.dim, recipe.dev, aligned_to) == (None, None, None):
        if unused := [name for name in _FOR_FITTING if getattr(recipe, name) not in (None, "none", 0)]:
            raise UsageError(f"{unused[0].replace('_', '-')} was given, but nothing is fitted: {TUNED.why}")
        recipe = dataclasses.replace(recipe, whitening=None)
        manifest = msgspec.structs.replace(manifest, choice=ChoiceRecord(why=TUNED.why))
    if left := _left_out(recipe, source, manifest):
        report.stage(f"left out, as made for the model's own layer and pooling: {', '.join(left)}")
    fit = None
    if recipe.fits:
        corpus = recipe.corpus_for(manifest.unwhitened_width)
        sentences = corpus.count()
        different = warn_of_repeats(corpus, sentences, manifest.unwhitened_width, report)
        fit = Fit(recipe, corpus, sentences, development, aligned_to)
    _check_matryoshka(recipe, source, manifest, fit)
    if fit is not None and (spec := fit.recipe.spec) is not None:
        check_sample_count(different, manifest.unwhitened_width, spec)
        if spec.beta and tuned:
            report.warn(
                f"{source.checkpoint.name} was fine-tuned for sentence similarity; whitening its top layer is measured "
                "to make similarities worse: compare with --whitening none"
            )
    return manifest, fit


def _composed(recipe: Recipe, source: TokenModel) -> Manifest:
    """Return the draft with the layers and the pooling of a complete recipe, and its choices about the graph.

    The modules after a published model's pooling are kept with its own layers and pooling, and left out otherwise.
    """
    assert recipe.layers is not None
    draft, same = source.draft, source.is_authors(recipe.layers, recipe.pooling)
    normalize = (same and draft.normalize) if recipe.normalize is None else recipe.normalize
    manifest = msgspec.structs.replace(
        draft,
        layers=recipe.layers,
        layer_weights=draft.layer_weights if same else None,
        pooling=recipe.pooling,
        modules=draft.modules if same else (),
        matryoshka_dimensions=recipe.matryoshka or (draft.matryoshka_dimensions if same else ()),
        normalize=normalize,
        precision=recipe.precision,
        target=recipe.target,
    )
    size = source.record.hidden_size
    width = source.composition(manifest).width(size)
    return msgspec.structs.replace(manifest, unwhitened_dimension=None if width == size else width, dimension=width)


def _length(recipe: Recipe, source: TokenModel, report: Reporter) -> int:
    """Return the maximum number of tokens of a text; warn where it is not what the model's users expect."""
    checkpoint, asked = source.checkpoint, recipe.max_length
    length = choose_max_seq_length(checkpoint, source.positions, source.tokenizer, asked)
    if (limit := source.batch_limit) is not None and length > limit.tokens:
        raise UsageError(
            f"max-length is {length}, but a text of more than {limit.tokens} tokens would change the vectors of the "
            f"others of its batch, by {checkpoint.name}'s {limit.why}; pass --max-length {limit.tokens}, or less"
        )
    cut = source.positions is not None and source.positions > length >= USUAL_LENGTH
    if asked is None and cut and (checkpoint.published is None or length == LONGEST):
        report.warn(
            f"texts will be cut to {length} tokens of the {source.positions} that {checkpoint.name} takes; "
            "--max-length takes more"
        )
    limits = (source.positions, source.tokenizer.stated_length, asked)
    if checkpoint.published is not None and checkpoint.published.max_seq_length is None and not any(limits):
        report.warn(
            f"{checkpoint.name} states no maximum length, and sentence-transformers cuts no text of it; here texts are "
            f"cut to {length} tokens: --max-length takes more"
        )
    return length


def _as_aligned(recipe: Recipe, manifest: Manifest, aligned_to: Aligned) -> tuple[Recipe, Manifest]:
    """Take the dimension and the layer weights of the bundle to align with, where none are given."""
    theirs = aligned_to.manifest
    if recipe.dim is None:
        recipe = dataclasses.replace(recipe, dim=theirs.dimension)
    same = (theirs.layers, theirs.pooling) == (manifest.layers, manifest.pooling)
    if same and manifest.layer_weights is None and not manifest.modules:
        manifest = msgspec.structs.replace(manifest, layer_weights=theirs.layer_weights)
    return recipe, manifest


def _left_out(recipe: Recipe, source: TokenModel, manifest: Manifest) -> list[str]:
    """Name the modules that other layers or another pooling leave out; a whitening takes the place of Normalize."""
    own = source.checkpoint.own
    if own is None or (manifest.layers, manifest.pooling) == (source.draft.layers, source.draft.pooling):
        return []
    scaled = recipe.whitening is not None or manifest.normalize
    return [*map(str, own.modules), *(["Normalize"] if own.normalize and not scaled else [])]


def _check_matryoshka(recipe: Recipe, source: TokenModel, manifest: Manifest, fit: Fit | None) -> None:
    """Check the dimensions that a caller says the model's vectors may be cut to."""
    if recipe.matryoshka is None:
        return
    passed = f"matryoshka is {', '.join(map(str, recipe.matryoshka))}"
    if fit is not None:
        raise UsageError(
            f"{passed}, but a whitening mixes the model's coordinates; pass whitening none, or leave matryoshka out: "
            "vectors whitened with pca or pca-cor can be cut anywhere"
        )
    if source.embeds and (manifest.layers, manifest.pooling) != (source.draft.layers, source.draft.pooling):
        raise UsageError(
            f"{passed}, but layers or pooling are not those that the model was trained with; leave layers and pooling "
            "out, or matryoshka"
        )
    if max(recipe.matryoshka) > (width := manifest.unwhitened_width):
        raise UsageError(f"{passed}, but the model's vectors have {width} dimensions; wanted 1 to {width}")
