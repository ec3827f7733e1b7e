"""Everything that is decided before weights are loaded: a recipe held against model, corpus and directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_export.checkpoint import Checkpoint, resolve
from whiten_export.corpus import Corpus
from whiten_export.families import FAMILIES
from whiten_export.loading import load_config, load_tokenizer
from whiten_export.recipe import Recipe, bundle_name, resolve_layers
from whiten_export.reporter import Reporter
from whiten_export.staging import check_target
from whiten_export.tokenizer_files import choose_max_seq_length
from whiten_export.whitening import check_sample_count
from whiten_runtime.errors import UsageError


@dataclass(frozen=True)
class Plan:
    """What an export will do.

    Attributes:
        recipe: what was asked for.
        checkpoint: where the model lies.
        config: its transformers config.
        tokenizer: its transformers tokenizer.
        layers: indices into the hidden states, ascending.
        max_seq_length: tokens a text may have.
        pad_token_id: what pads a batch.
        width: size of a hidden state, d.
        dimension: of the finished vectors, k.
        corpus: what the whitening is fitted on, or None.
        sentences: how many the corpus has.
        target: the bundle's directory.
    """

    recipe: Recipe
    checkpoint: Checkpoint
    config: Any
    tokenizer: Any
    layers: tuple[int, ...]
    max_seq_length: int
    pad_token_id: int
    width: int
    dimension: int
    corpus: Corpus | None
    sentences: int
    target: Path


def make_plan(recipe: Recipe, out: Path | None, replace: bool, report: Reporter) -> Plan:
    """Resolve every choice of a recipe, and find what is wrong with it before any long work.

    Raises:
        UsageError: the recipe does not fit the model, the corpus or the directory.
        DataError: the corpus cannot be read.
        WhitenError: the model cannot be found or read.
    """
    if out is not None:
        check_target(out, replace)
    report.stage(f"finding {recipe.model}")
    checkpoint = resolve(recipe.model, recipe.revision, recipe.trust_remote_code)
    config = load_config(checkpoint, recipe.trust_remote_code)
    count, width = config.num_hidden_layers, config.hidden_size
    default = checkpoint.entry.recommended_layers if checkpoint.entry else tuple(sorted({1, count}))
    layers = resolve_layers(default if recipe.layers is None else recipe.layers, count)
    if recipe.dim is not None and recipe.dim > width:
        raise UsageError(f"dim is {recipe.dim}, but the model's vectors have {width} dimensions; wanted 1 to {width}")
    target = out or Path("bundles") / bundle_name(checkpoint.name, recipe, layers)
    check_target(target, replace)
    tokenizer = load_tokenizer(checkpoint, recipe.trust_remote_code)
    max_seq_length = choose_max_seq_length(checkpoint, config, tokenizer, recipe.max_length)
    if config.model_type not in FAMILIES:
        report.warn(f"architecture '{config.model_type}' has not been tried; the parity gate will decide")
    corpus = Corpus(recipe.sources, recipe.column, recipe.max_sentences) if recipe.whitening else None
    sentences = _check_corpus(corpus, width, recipe.dim or width, report) if corpus else 0
    if recipe.whitening and checkpoint.sentence_similarity and layers[-1] == count:
        report.warn(
            f"{checkpoint.name} was fine-tuned for sentence similarity; whitening its top layer is measured to "
            "make similarities worse: compare with --whitening none"
        )
    return Plan(
        recipe=recipe,
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        layers=layers,
        max_seq_length=max_seq_length,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
        width=width,
        dimension=recipe.dim or width,
        corpus=corpus,
        sentences=sentences,
        target=target,
    )


def _check_corpus(corpus: Corpus, width: int, dimension: int, report: Reporter) -> int:
    sentences = corpus.count()
    if warning := check_sample_count(sentences, width, dimension):
        report.warn(warning)
    return sentences
