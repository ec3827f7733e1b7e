"""Plan an export before weights are loaded: check a recipe against model, corpus and directory."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from whiten_export.pipeline.recipe import Recipe, bundle_name
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoint import resolve
from whiten_export.sources.choice import resolve_layers
from whiten_export.sources.max_length import USUAL_LENGTH, choose_max_seq_length
from whiten_export.sources.opening import open_model
from whiten_export.writing.staging import check_target
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.files.pairs import Pairs, read_pairs
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import check_sample_count
from whiten_whitening.selection import Choice, fine_tuned
from whiten_whitening.shrinkage import check_for_sif


@dataclass(frozen=True)
class Plan:
    """Describes what an export will do.

    Attributes:
        recipe: recipe of the export.
        model: model to export.
        layers: indices into the hidden states, ascending.
        max_seq_length: maximum number of tokens of a text.
        corpus: sentences that the whitening is fitted on, or None.
        sentences: number of sentences of the corpus.
        pairs: pairs with scores by which the whitening is chosen, or None.
        settled: choice of the whitening, if it was left to the export and is already made; otherwise None.
        target: the bundle's directory.
    """

    recipe: Recipe
    model: TokenModel
    layers: tuple[int, ...]
    max_seq_length: int
    corpus: Corpus | None
    sentences: int
    pairs: Pairs | None
    settled: Choice | None
    target: Path

    @property
    def pooling(self) -> Pooling:
        """Return the pooling over the tokens."""
        return self.recipe.source.pooling or "mean"

    @property
    def width(self) -> int:
        """Return the size of a hidden state, d."""
        return self.model.record.hidden_size


def make_plan(recipe: Recipe, out: Path | None, replace: bool, report: Reporter) -> Plan:
    """Resolve every choice of a recipe, and report mistakes before any long work.

    Raises:
        UsageError: the recipe is not valid for the model, the corpus or the directory.
        DataError: the corpus cannot be read.
        WhitenError: the model cannot be found or read.
    """
    if out is not None:
        check_target(out, replace)
    source, whitening = recipe.source, recipe.whitening
    report.stage(f"finding {source.model}")
    checkpoint = resolve(source.model, source.revision, source.trust_remote_code)
    recommended: Pooling = checkpoint.entry.pooling if checkpoint.entry else "mean"
    source = dataclasses.replace(source, pooling=source.pooling or recommended)
    recipe = dataclasses.replace(recipe, source=source)
    if source.pooling == "sif":
        check_for_sif(whitening.shrinkage)
    model = open_model(checkpoint, source, report)
    record = model.record
    count, width = record.num_hidden_layers, record.hidden_size
    chosen = model.default_layers if source.layers is None else source.layers
    layers = resolve_layers(chosen, count, model.layers)
    if whitening.dim is not None and whitening.dim > width:
        raise UsageError(
            f"dim is {whitening.dim}, but the model's vectors have {width} dimensions; wanted 1 to {width}"
        )
    target = out or Path("bundles") / bundle_name(checkpoint.name, recipe, layers)
    check_target(target, replace)
    max_seq_length = choose_max_seq_length(checkpoint.directory, model.positions, model.tokenizer, source.max_length)
    if source.max_length is None and model.positions is not None and model.positions > max_seq_length >= USUAL_LENGTH:
        report.warn(
            f"texts will be cut to {max_seq_length} tokens of the {model.positions} that {checkpoint.name} takes; "
            "--max-length takes more, and attention's memory grows with its square"
        )
    if not model.supported:
        report.warn(f"architecture '{record.model_type}' has not been tried; the parity gate will decide")
    top_is_fine_tuned = record.sentence_similarity and layers[-1] == count
    pairs = read_pairs(Path(whitening.dev)) if whitening.dev is not None else None
    settled = None
    if whitening.method == "auto" and pairs is None and top_is_fine_tuned:
        if whitening.dim is not None:
            raise UsageError(
                f"whitening auto would not whiten {checkpoint.name}, which was fine-tuned for sentence similarity, and "
                f"--dim {whitening.dim} needs a whitening; give --dev FILE to decide by, or name a method"
            )
        settled = fine_tuned(checkpoint.name)
        report.stage(settled.why)
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
        layers=layers,
        max_seq_length=max_seq_length,
        corpus=corpus,
        sentences=sentences,
        pairs=pairs,
        settled=settled,
        target=target,
    )
