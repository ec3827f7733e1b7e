"""Open a checkpoint by its kind, with the packages that this kind needs, and choose its maximum length."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from whiten_export.graph.builder import HiddenStates
from whiten_export.proof.gate import PublishedVectors, Request
from whiten_export.proof.reference import Float64Array, Reference
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.checkpoints.own_code import code_notes
from whiten_export.sources.choice import SourceChoice
from whiten_export.sources.families import BatchLimit
from whiten_export.sources.tokenizers import SourceTokenizer, check_tokenizer, specials_without_row, without_tokens
from whiten_runtime.bundle.records import Pooling, Source, pooling_modes
from whiten_runtime.errors import UsageError, WhitenError, from_clone
from whiten_runtime.reporter import Reporter


class TokenModel:
    """Computes hidden states from token ids. The defaults are those of a table of vectors, without a network."""

    record: Source  # description of the model, for the manifest
    tokenizer: SourceTokenizer  # tokenizer of the model
    layers: tuple[int, ...] = (0,)  # indices of the available hidden states, ascending
    default_layers: tuple[int, ...] = (0,)  # hidden states to average by default
    positions: int | None = None  # maximum number of tokens that it has positions for; None for any number
    batch_limit: BatchLimit | None = None  # length from which a text changes the vectors of its batch, if any
    vocab_size: int  # number of token ids
    client_config: Mapping[str, Any]  # content of `config.json` for other programs
    supported: bool = True  # whether its family is in the registry
    own_outputs: tuple[str, ...] = ()  # outputs of its own graph that are one vector a text

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Return the graph that computes these layers, without nodes that they do not need."""
        raise NotImplementedError

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the reference that the graph is checked against."""
        raise NotImplementedError

    def own_vectors(self, output: str, rows: Sequence[Sequence[int]]) -> Float64Array:
        """Return the vectors [n, k] that its own graph gives in an output for n texts, by their token ids."""
        raise NotImplementedError

    def published(self, requests: Sequence[Request], max_seq_length: int) -> PublishedVectors | None:
        """Return the vectors of the program that the model was published for; None if there is no such program."""
        return None


def open_model(checkpoint: Checkpoint, choice: SourceChoice, report: Reporter | None = None) -> TokenModel:
    """Read everything about a model except its weights."""
    report = report or Reporter()
    model = _open(checkpoint, choice, report)
    check_tokenizer(checkpoint, model.tokenizer, model.vocab_size)
    if removed := specials_without_row(model.tokenizer, model.vocab_size):
        report.stage(
            f"the embeddings have no row for {len(removed)} of the tokenizer's special tokens, such as '{removed[0]}': "
            "texts that hold them are read as ordinary characters"
        )
        model.tokenizer = without_tokens(model.tokenizer, removed)
    for note in (*checkpoint.notes, *code_notes(checkpoint, model.record, choice.trust_remote_code)):
        report.warn(note)
    return model


def _open(checkpoint: Checkpoint, choice: SourceChoice, report: Reporter) -> TokenModel:
    (_check_words if checkpoint.kind == "words" else _check_network)(choice)
    modes = pooling_modes(choice.pooling or "mean")
    if "pooler" in modes and checkpoint.kind != "transformers":
        raise UsageError(f"pooling pooler needs the network's own pooler, which '{choice.model}' does not have")
    if checkpoint.kind == "words":
        from whiten_export.sources.word_vectors import WordVectors

        return WordVectors(checkpoint, choice.max_words, choice.frequencies, report)
    if checkpoint.kind == "onnx":
        from whiten_export.sources.onnx_encoder import OnnxEncoder

        return OnnxEncoder(checkpoint)
    for package in ("torch", "transformers", *(("sentence-transformers",) if checkpoint.published else ())):
        try:
            version(package)
        except PackageNotFoundError:
            raise WhitenError(
                f"exporting a PyTorch checkpoint needs {package}; install it {from_clone('export')}"
            ) from None
    if checkpoint.kind == "static":
        from whiten_export.sources.networks.sentence_transformers import StaticEmbedding

        return StaticEmbedding(checkpoint, choice.device)
    from whiten_export.sources.networks.pytorch import PyTorchModel

    return PyTorchModel(checkpoint, choice.trust_remote_code, choice.device)


def _check_words(choice: SourceChoice) -> None:
    if choice.pooling not in ("mean", "sif"):
        raise UsageError(f"pooling {choice.pooling} is not for word vectors; wanted mean or sif")
    if choice.frequencies is not None and choice.pooling != "sif":
        raise UsageError("frequencies are for --pooling sif; leave one out or add the other")


def _check_network(choice: SourceChoice) -> None:
    if choice.pooling == "sif":
        raise UsageError(f"pooling sif weighs words by their frequency; '{choice.model}' is not a file of word vectors")
    for name in ("max_words", "frequencies"):
        if getattr(choice, name) is not None:
            raise UsageError(f"{name.replace('_', '-')} is for a file of word vectors, which '{choice.model}' is not")


USUAL_LENGTH = 512
"""Default maximum number of tokens, as in the papers' models; that of an embedding model's authors has priority."""


def choose_max_seq_length(
    checkpoint: Checkpoint, positions: int | None, tokenizer: SourceTokenizer, wanted: int | None
) -> int:
    """Return the maximum number of tokens of a text: as asked for, else its authors', else `USUAL_LENGTH` at most."""
    specials = tokenizer.special_tokens
    if wanted is None:
        chosen = _authors_length(checkpoint)
        usual = USUAL_LENGTH if chosen is None and checkpoint.published is None and positions is not None else None
        stated = [chosen, positions, usual] if chosen is not None else [tokenizer.stated_length, positions, usual]
        wanted = min((length for length in stated if length is not None), default=USUAL_LENGTH)
    if positions is not None and wanted > positions:
        raise UsageError(f"max-length is {wanted}, but the model has positions for {positions} tokens")
    if wanted <= specials:
        raise UsageError(f"max-length is {wanted}, but special tokens alone take {specials}; wanted more than that")
    return wanted


def _authors_length(checkpoint: Checkpoint) -> int | None:
    length = checkpoint.published.max_seq_length if checkpoint.published else None
    if length is None and checkpoint.published is None and checkpoint.entry is not None:
        length = checkpoint.entry.max_length
    return length if isinstance(length, int) and length > 0 else None
