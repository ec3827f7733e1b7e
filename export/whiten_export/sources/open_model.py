"""Open a checkpoint by its kind, with the packages that this kind needs, and choose its maximum length."""

from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.model import TokenModel
from whiten_export.sources.own_code import code_notes
from whiten_export.sources.recorded import open_recorded
from whiten_export.sources.resolve import resolve
from whiten_export.sources.tokenizer import (
    UNSET_LENGTH,
    check_tokenizer,
    specials_without_row,
    without_tokens,
)
from whiten_runtime.errors import UsageError, WhitenError, from_clone, kind_of_place
from whiten_runtime.reporter import Reporter


def find_checkpoint(
    model: str,
    trust_remote_code: bool = False,
    route: str | None = None,
    with_weights: bool = True,
    leave_out: Collection[str] = (),
) -> Checkpoint:
    """Find a checkpoint as `resolve` does; say that a package is missing before its weights are downloaded."""
    if with_weights and _missing(PACKAGES) and kind_of_place(Path(model)) is None:
        described = resolve(model, trust_remote_code, route, with_weights=False, leave_out=leave_out)
        if described.kind == "transformers":
            _open_pytorch(described, trust_remote_code, "cpu")
    return resolve(model, trust_remote_code, route, with_weights, leave_out)


def open_model(
    checkpoint: Checkpoint,
    trust_remote_code: bool = False,
    device: str = "cpu",
    report: Reporter | None = None,
) -> TokenModel:
    """Read everything about a model except its weights."""
    report = report or Reporter()
    if checkpoint.kind == "words":
        from whiten_export.sources.words import WordVectors

        model: TokenModel = WordVectors(checkpoint, report)
    elif checkpoint.kind == "onnx":
        from whiten_export.sources.onnx_encoder import OnnxEncoder

        model = OnnxEncoder(checkpoint)
    else:
        model = _open_pytorch(checkpoint, trust_remote_code, device)
    check_tokenizer(checkpoint, model.tokenizer, model.vocab_size)
    if model.versions:
        report.stage(f"recorded with torch {model.versions['torch']}: its graph, and the vectors to compare it with")
    if removed := specials_without_row(model.tokenizer, model.vocab_size):
        report.stage(
            f"the embeddings have no row for {len(removed)} of the tokenizer's special tokens, such as '{removed[0]}': "
            "texts that hold them are read as ordinary characters"
        )
        model.tokenizer = without_tokens(model.tokenizer, removed)
    of_code = code_notes(checkpoint, model.record, trust_remote_code)
    for note in (*checkpoint.notes, *model.notes, *model.tokenizer.notes, *of_code):
        report.warn(note)
    return model


PACKAGES = ("torch", "transformers", "onnxscript", "sentence-transformers")
"""Packages that exports of PyTorch checkpoints need."""


def _missing(names: Sequence[str]) -> str | None:
    """Return the first of some packages that is not installed; None if all are."""
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            return name
    return None


def _open_pytorch(checkpoint: Checkpoint, trust_remote_code: bool, device: str) -> TokenModel:
    traced = () if checkpoint.kind == "static" else ("onnxscript",)
    compared = ("sentence-transformers",) if checkpoint.describes_vectors else ()
    if (missing := _missing(("torch", "transformers", *traced, *compared))) is not None:
        if (recorded := open_recorded(checkpoint)) is not None:
            return recorded
        raise WhitenError(f"exporting a PyTorch checkpoint needs {missing}; install it {from_clone('export')}")
    if checkpoint.kind == "static":
        from whiten_export.sources.tables import StaticEmbedding

        return StaticEmbedding(checkpoint, device)
    from whiten_export.sources.pytorch import PyTorchModel

    return PyTorchModel(checkpoint, trust_remote_code, device)


USUAL_LENGTH = 512
"""Default maximum number of tokens, as in the papers' models; that of an embedding model's authors has priority."""


LONGEST = 8192
"""Largest default of the maximum number of tokens: the longest that the proof of an export takes minutes for."""


def choose_max_seq_length(model: TokenModel, wanted: int | None) -> int:
    """Return the maximum number of tokens of a text: as asked for, else its authors', else `USUAL_LENGTH` at most.

    Where none is asked for, it is at most `LONGEST`.
    """
    positions, specials = model.positions, model.tokenizer.special_tokens
    if wanted is None:
        plain = _chosen_length(model.checkpoint) is None and not model.checkpoint.describes_vectors
        usual = USUAL_LENGTH if plain and model.stated_positions is not None else None
        read = authors_length(model) or model.tokenizer.stated_length
        wanted = min(LONGEST, _smallest(read, positions, usual) or USUAL_LENGTH)
    if positions is not None and wanted > positions:
        raise UsageError(f"max-length is {wanted}, but the model has positions for {positions} tokens")
    if wanted <= specials:
        raise UsageError(f"max-length is {wanted}, but special tokens alone take {specials}; wanted more than that")
    return wanted


def authors_length(model: TokenModel) -> int | None:
    """Return the number of tokens that the authors' program reads of a text; None if it reads all.

    sentence-transformers takes the number of the folder, else the smaller one of tokenizer and config.
    """
    stated = model.tokenizer.stated_length
    tokenizer = None if stated is None or stated >= UNSET_LENGTH else stated
    return _chosen_length(model.checkpoint) or _smallest(tokenizer, model.stated_positions)


def _smallest(*lengths: int | None) -> int | None:
    return min((length for length in lengths if length is not None), default=None)


def _chosen_length(checkpoint: Checkpoint) -> int | None:
    return None if checkpoint.authors is None else checkpoint.authors.max_length
