"""Check a recipe against a model before weights are loaded: draft the manifest, and say which whitening to fit."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whiten_export.fit import FitJob, is_multilingual, is_tuned, open_aligned
from whiten_export.graph.cuda import fusions
from whiten_export.recipe import Recipe, bundle_name
from whiten_export.sources.model import TokenModel, resolve_layers
from whiten_export.sources.open_model import authors_length, choose_max_seq_length, find_checkpoint, open_model
from whiten_export.staging import check_place
from whiten_runtime.bundle.manifest import ChoiceRecord, Manifest, pooling_modes
from whiten_runtime.errors import UsageError, instance_of, path_of
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.inference.options import Prompts
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import TUNED, check_searched, read_development
from whiten_whitening.maps import check_for_sif
from whiten_whitening.statistics import warn_of_repeats


def open_source(recipe: Recipe, report: Reporter, with_weights: bool = True) -> TokenModel:
    """Find the model of a recipe, and read everything about it but its weights.

    Without `with_weights`, those of a network on the hub are not downloaded either, and nothing can be exported.
    """
    report.stage(f"reading {recipe.model}")
    checkpoint = find_checkpoint(recipe.model, recipe.trust_remote_code, recipe.route, with_weights, recipe.leave_out)
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


def fill_defaults(recipe: Recipe, source: TokenModel) -> Recipe:
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
    width = _with_layers(completed, source).dimension
    if recipe.dim is not None and recipe.dim > width:
        raise UsageError(f"dim is {recipe.dim}, but the model's vectors have {width} dimensions; wanted 1 to {width}")
    return completed


def default_name(recipe: Recipe, source: TokenModel) -> str:
    """Return the name of the bundle of a complete recipe."""
    assert recipe.layers is not None
    as_authors = recipe.whitening is None and source.is_authors(recipe.layers, recipe.pooling)
    normalize = as_authors and source.draft.normalize if recipe.normalize is None else recipe.normalize
    same = as_authors and normalize == source.draft.normalize
    return bundle_name(source.checkpoint.name, recipe, recipe.layers, normalize, same)


@dataclass(frozen=True)
class Draft:
    """Holds the choices about an export, checked against its model."""

    source: TokenModel
    manifest: Manifest  # manifest of the bundle, if no whitening is fitted
    job: FitJob | None  # whitening to fit; None for none
    target: Path  # the bundle's place


def draft_export(
    recipe: Recipe, out: str | Path | None, replace: bool, report: Reporter, with_weights: bool = True
) -> Draft:
    """Check a recipe against its model, the packages that are installed, and the place of the bundle.

    Args:
        recipe: model and choices.
        out: directory to create; None for bundles/NAME-l1-l6 and the like.
        replace: replace a bundle that already exists.
        report: receives stages and warnings.
        with_weights: download the weights of a network too, so that it can be exported.
    """
    instance_of("recipe", recipe, Recipe, "Recipe('minilm', layers=(0, 1))")
    if recipe.target == "cuda":
        fusions()  # a missing package is reported before the work
    target = None if out is None else path_of("out", out)
    if target is not None:
        check_place(target, replace)
    source = open_source(recipe, report, with_weights)
    completed = fill_defaults(recipe, source)
    if target is None:
        target = Path("bundles", default_name(completed, source))
        check_place(target, replace)
    manifest, job = draft_manifest(completed, source, target.absolute().name, report)
    return Draft(source, manifest, job, target)


def draft_manifest(recipe: Recipe, source: TokenModel, name: str, report: Reporter) -> tuple[Manifest, FitJob | None]:
    """Return the manifest of the model's vectors by a complete recipe, and the whitening to fit, if there is one.

    The manifest is that of the bundle if no whitening is fitted; a fit sets what a whitening changes. The modules after
    a published model's pooling are kept with its own layers and pooling, and left out otherwise.
    """
    draft, same = _with_layers(recipe, source), source.is_authors(recipe.layers, recipe.pooling)
    width, length = draft.dimension, _length(recipe, source, report)
    if not source.supported:
        report.warn(f"architecture '{source.record.model_type}' has not been tried; the parity gate will decide")
    aligned_to, weights, why = open_aligned(recipe.align_to), draft.layer_weights, None
    if aligned_to is not None:
        recipe = dataclasses.replace(recipe, dim=aligned_to.dimension(recipe.dim, recipe.spec))
        theirs = aligned_to.manifest
        if not (weights or draft.modules) and (theirs.layers, theirs.pooling) == (recipe.layers, recipe.pooling):
            weights = theirs.layer_weights
    development = None if recipe.dev is None else read_development(Path(recipe.dev), report)
    check_searched(development, draft, bool(recipe.normalize))
    tuned = is_tuned(source.record, draft.layers)
    if tuned and recipe.whitening == "auto" and (recipe.dim, recipe.dev, aligned_to) == (None, None, None):
        if unused := [
            name for name in (*recipe.for_fitting, "shrinkage") if getattr(recipe, name) not in (None, "none", 0)
        ]:
            raise UsageError(f"{unused[0].replace('_', '-')} was given, but nothing is fitted: {TUNED.why}")
        recipe, why = dataclasses.replace(recipe, whitening=None), TUNED.why
    manifest = msgspec.structs.replace(
        draft,
        name=name,
        layer_weights=weights,
        matryoshka_dimensions=recipe.matryoshka or draft.matryoshka_dimensions,
        choice=None if why is None else ChoiceRecord(why=why),
        normalize=(same and draft.normalize) if recipe.normalize is None else recipe.normalize,
        max_seq_length=length,
        max_characters=msgspec.UNSET if source.letters is None else source.letters * length,
        precision=recipe.precision,
        target=recipe.target,
    )
    assert manifest.pooling is not None
    source.check_choice(manifest.layers, manifest.pooling, length)
    if left := _left_out(recipe, source, manifest):
        report.stage(f"left out, as made for the model's own layer and pooling: {', '.join(left)}")
    job = None
    if recipe.fits:
        corpus = recipe.corpus_for(width)
        sentences = corpus.count()
        if BUILTIN_CORPUS in recipe.sources and is_multilingual(source.tokenizer.json):
            report.stage(
                f"{BUILTIN_CORPUS} is English, but the model knows other scripts: add --corpus FILE in your languages"
            )
        different = warn_of_repeats(corpus, sentences, width, report)
        job = FitJob(
            recipe.spec,
            recipe.whitening == "auto",
            recipe.dim,
            recipe.shrinkage,
            None if recipe.whitening is None else bool(recipe.normalize),
            corpus=corpus,
            sentences=sentences,
            development=development,
            aligned_to=aligned_to,
            prompt_name=fit_prompt(manifest, recipe.prompt_name),
        )
    _check_matryoshka(recipe, source, same, width, job is not None)
    if job is not None:
        job.check_count(manifest, different)
        if job.spec is not None and job.spec.beta and tuned:
            report.warn(
                f"{source.checkpoint.name} was fine-tuned for sentence similarity; whitening its top layer is measured "
                "to make similarities worse: compare with --whitening none"
            )
    return manifest, job


def fit_prompt(manifest: Manifest, name: str | None) -> str | None:
    """Return the name of the prompt with which a whitening is fitted; None where its text is that of the default one.

    Raises:
        UsageError: the model has no prompt of this name.
    """
    if name is None:
        return None
    prompts = Prompts.of(manifest)
    if name not in prompts.texts:
        known = ", ".join(f"'{own}'" for own in prompts.texts) or "none"
        raise UsageError(f"prompt-name is '{name}', but the prompts of {manifest.source.model} are: {known}")
    return None if prompts.texts[name] == prompts.resolve() else name


def _with_layers(recipe: Recipe, source: TokenModel) -> Manifest:
    """Return the model's draft with the layers and the pooling of a complete recipe.

    What its authors made for their own layers and pooling is kept with these, and left out otherwise.
    """
    assert recipe.layers is not None
    if source.is_authors(recipe.layers, recipe.pooling):
        return source.draft
    others = {"layers": recipe.layers, "layer_weights": None, "pooling": recipe.pooling}
    chosen = msgspec.structs.replace(source.draft, modules=(), matryoshka_dimensions=(), **others)
    return source.sized(chosen)


def _length(recipe: Recipe, source: TokenModel, report: Reporter) -> int:
    """Return the maximum number of tokens of a text; warn where it is not what the model's users expect."""
    checkpoint, asked = source.checkpoint, recipe.max_length
    length = choose_max_seq_length(source, asked)
    if (limit := source.batch_limit) is not None and length > limit.tokens:
        raise UsageError(
            f"max-length is {length}, but a text of more than {limit.tokens} tokens would change the vectors of the "
            f"others of its batch, by {checkpoint.name}'s {limit.why}; pass --max-length {limit.tokens}, or less"
        )
    if asked is not None:
        return length
    read = authors_length(source)
    if read is not None and length < read:
        full = length == source.positions
        more = "states: its table of positions has no more" if full else "takes; --max-length takes more"
        report.warn(f"texts will be cut to {length} tokens of the {read} that {checkpoint.name} {more}")
    if read is None and checkpoint.describes_vectors:
        report.warn(
            f"{checkpoint.name} states no maximum length, and its authors' program cuts no text of it; here texts are "
            f"cut to {length} tokens: --max-length takes more"
        )
    return length


def _left_out(recipe: Recipe, source: TokenModel, manifest: Manifest) -> list[str]:
    """Name the modules that other layers or another pooling leave out; a whitening takes the place of Normalize."""
    authors = source.checkpoint.authors
    if authors is None or source.is_authors(recipe.layers, recipe.pooling):
        return []
    scaled = recipe.whitening is not None or manifest.normalize
    return [*map(str, authors.modules), *(["Normalize"] if authors.normalize and not scaled else [])]


def _check_matryoshka(recipe: Recipe, source: TokenModel, same: bool, width: int, fits: bool) -> None:
    """Check the dimensions that a caller says the model's vectors may be cut to."""
    if recipe.matryoshka is None:
        return
    passed = f"matryoshka is {', '.join(map(str, recipe.matryoshka))}"
    if fits:
        raise UsageError(
            f"{passed}, but a whitening mixes the model's coordinates; pass whitening none, or leave matryoshka out: "
            "vectors whitened with pca or pca-cor can be cut anywhere"
        )
    if source.embeds and not same:
        raise UsageError(
            f"{passed}, but layers or pooling are not those that the model was trained with; leave layers and pooling "
            "out, or matryoshka"
        )
    if max(recipe.matryoshka) > width:
        raise UsageError(f"{passed}, but the model's vectors have {width} dimensions; wanted 1 to {width}")
