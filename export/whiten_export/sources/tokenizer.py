"""Describe the tokenizer of a model as `tokenizer.json`, which it has or transformers makes, and hash what it means."""

import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from whiten_export.sources.checkpoint import TOKENIZER_FILES, Checkpoint
from whiten_export.sources.checks import ENDS, add_ends, class_note, read_tokenizer_config, words_note
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.errors import UsageError, WhitenError, one_line

UNSET_LENGTH = 1_000_000
"""Length from which a tokenizer counts as unlimited: transformers then writes a far larger number."""

_LEAST_SHARE = 0.1
"""Least number of tokens, as a share of the embeddings' rows: rows that no token has are padding, or of no use."""

_FILES = ("tokenizer.json", "tekken.json", *TOKENIZER_FILES, "*tokenizer*.py")
"""Names of files that hold a tokenizer."""

_COPY = (
    "copy the files of the model's own tokenizer (tokenizer.json, vocab.txt or a file .model, and "
    "tokenizer_config.json) into"
)


@dataclass(frozen=True)
class SourceTokenizer:
    """A checkpoint's tokenizer."""

    json: str  # content of `tokenizer.json`, in the format of Hugging Face tokenizers
    # function that returns the ids of the checkpoint's own tokenizer, truncated to a number of tokens; None once they
    # were compared, as it keeps that tokenizer in memory: 300 MB of 250,000 pieces
    own_ids: Callable[[Sequence[str], int], list[list[int]]] | None
    pad_token_id: int  # id of the padding token
    specials: Mapping[str, str]  # special tokens by their role, such as "pad_token"
    stated_length: int | None  # maximum number of tokens of a text, where the checkpoint states it; otherwise None
    # first id that stands for the unknown token. Such ids belong to pieces that the format must distinguish and
    # the checkpoint does not. None where there are none
    surplus_from: int | None = None
    unknown_token_id: int = 0  # id of the unknown token
    truncation_side: Side = "right"  # side from which tokens are removed from texts that are too long
    notes: tuple[str, ...] = ()  # what an export warns of, where the checkpoint's files contradict each other

    def plain(self, ids: Sequence[int]) -> list[int]:
        """Return the ids as the checkpoint's own tokenizer gives them."""
        if self.surplus_from is None:
            return list(ids)
        return [number if number < self.surplus_from else self.unknown_token_id for number in ids]

    @property
    def special_tokens(self) -> int:
        """Return the number of special tokens that a text gets."""
        return int(Tokenizer.from_str(self.json).num_special_tokens_to_add(False))


def lower_case(backend: Tokenizer) -> None:
    """Lower-case texts before all else, unless the tokenizer has a step that does, as sentence-transformers 6 does."""
    known = backend.normalizer
    steps = []
    if isinstance(known, normalizers.Sequence):
        steps = [known[index] for index in range(len(known))]
    elif known is not None:
        steps = [known]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])


def check_tokenizer(checkpoint: Checkpoint, tokenizer: SourceTokenizer, rows: int) -> None:
    """Check that a tokenizer is that of the embeddings: it knows texts, and fits the number of rows.

    Each id needs a row, except those of special tokens such as EmbeddingGemma's for images.

    Raises:
        UsageError: the tokenizer has no token but special ones, or far fewer tokens than the embeddings have rows.
        WhitenError: an id has no row.
    """
    backend = Tokenizer.from_str(tokenizer.json)
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab()
    plain = {token: number for token, number in vocabulary.items() if number not in added or not added[number].special}
    if not any(token.strip("\u2581 ") for token in plain):  # U+2581: SentencePiece's blank
        raise missing_tokenizer(checkpoint, len(vocabulary))
    if len(vocabulary) < _LEAST_SHARE * rows:
        raise UsageError(
            f"'{checkpoint.model}': its tokenizer has {len(vocabulary):,} tokens, but its embeddings {rows:,} rows; "
            f"{_COPY} {checkpoint.tokenizer_directory}; if it is the right one, remove the unused rows with "
            "transformers' resize_token_embeddings"
        )
    ids = [*plain.values(), *backend.encode("").ids, tokenizer.pad_token_id]
    if (largest := max(tokenizer.plain(ids))) >= rows:
        raise WhitenError(
            f"'{checkpoint.model}': its tokenizer has ids up to {largest}, but the embeddings have {rows} rows; use "
            "the tokenizer that the model was trained with"
        )


def tokenizer_missing(checkpoint: Checkpoint) -> bool:
    """Return whether no file of a tokenizer lies in the folder of a checkpoint's tokenizer."""
    folder = checkpoint.tokenizer_directory
    return not any(path for name in _FILES for path in folder.glob(name))


def missing_tokenizer(checkpoint: Checkpoint, specials: int = 0) -> UsageError:
    """Return the error of a checkpoint without a tokenizer, or with one of special tokens alone."""
    why = "" if tokenizer_missing(checkpoint) else f" that knows a word: its {specials} tokens are special ones alone"
    return UsageError(f"'{checkpoint.model}' has no tokenizer{why}; {_COPY} {checkpoint.tokenizer_directory}")


def specials_without_row(tokenizer: SourceTokenizer, rows: int) -> tuple[str, ...]:
    """Return the added special tokens whose ids are beyond the embeddings, such as EmbeddingGemma's for images."""
    added = Tokenizer.from_str(tokenizer.json).get_added_tokens_decoder()
    return tuple(token.content for number, token in added.items() if token.special and number >= rows)


def without_tokens(tokenizer: SourceTokenizer, removed: Container[str]) -> SourceTokenizer:
    """Return a tokenizer that does not know some added tokens: texts that hold them are read as other characters."""
    content = json.loads(tokenizer.json)
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in removed]
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, dict):
        content["model"]["vocab"] = {token: number for token, number in vocabulary.items() if token not in removed}
    specials = {name: token for name, token in tokenizer.specials.items() if token not in removed}
    return replace(tokenizer, json=Tokenizer.from_str(json.dumps(content)).to_str(), specials=specials)


def read_backend(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(path.read_bytes())
    except Exception as error:  # tokenizers raises Exception itself
        raise WhitenError(f"{path}: cannot be read ({' '.join(str(error).split())}); copy the model again") from None


def tokenizer_sha256(content: str) -> str:
    """Compute the SHA-256 of a `tokenizer.json` as tokenizers reads it, without truncation and padding.

    tokenizers writes what older versions wrote in its own way, such as merges as pairs. Keys are then sorted, and
    fields that are null or false left out: a version that adds a setting writes it, switched off, into every file.
    """
    meant = json.loads(Tokenizer.from_str(content).to_str()) | {"truncation": None, "padding": None}
    text = json.dumps(_without_unset(meant), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        settings = {name: inner for name, inner in value.items() if inner is not None and inner is not False}
        return {name: _without_unset(inner) for name, inner in settings.items()}
    return [_without_unset(inner) for inner in value] if isinstance(value, list) else value


def describe_tokenizer(checkpoint: Checkpoint, tokenizer: Any) -> SourceTokenizer:
    """Describe a transformers tokenizer, with the lower-casing that sentence-transformers' files ask for."""
    try:
        return _describe(checkpoint, tokenizer)
    except WhitenError:
        raise
    except Exception as error:  # of settings that only fail where they are used
        reason = f"{type(error).__name__} {one_line(error)}"
        raise WhitenError(f"'{checkpoint.model}': its tokenizer fails ({reason}); copy its files again") from error


def _describe(checkpoint: Checkpoint, tokenizer: Any) -> SourceTokenizer:
    notes = _file_notes(checkpoint, tokenizer)
    if checkpoint.authors is not None and checkpoint.authors.do_lower_case:
        if not getattr(tokenizer, "is_fast", False):
            raise WhitenError(f"'{checkpoint.model}' asks for do_lower_case, but has only a {type(tokenizer).__name__}")
        lower_case(tokenizer.backend_tokenizer)

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
        return ids

    _check_types(checkpoint, tokenizer)
    pad_token_id = next(
        (number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None), 0
    )
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    if "pad_token" not in specials:
        specials["pad_token"] = str(tokenizer.convert_ids_to_tokens(pad_token_id))
    length = tokenizer.model_max_length
    return SourceTokenizer(
        json=_as_json(checkpoint, tokenizer),
        own_ids=own_ids,
        pad_token_id=int(pad_token_id),
        specials=specials,
        stated_length=length if length < UNSET_LENGTH else None,
        surplus_from=_surplus_from(tokenizer),
        unknown_token_id=tokenizer.unk_token_id or 0,
        truncation_side=tokenizer.truncation_side,
        notes=(*notes, *filter(None, [_adapter_note(checkpoint, tokenizer)])),
    )


def _file_notes(checkpoint: Checkpoint, tokenizer: Any) -> tuple[str, ...]:
    """Return what an export warns of the files of a transformers tokenizer; add the tokens that they ask for."""
    path, kind = checkpoint.tokenizer_directory / TOKENIZER_FILE, type(tokenizer)
    if not getattr(tokenizer, "is_fast", False) or not path.is_file():
        return ()
    backend = read_backend(path)
    notes = [words_note(path.parent, backend)]
    as_stored = checkpoint.entry is None or checkpoint.entry.lowercase is None
    if as_stored and kind.__module__.startswith("transformers."):
        name = f"the {kind.__name__} of transformers {version('transformers')}"
        notes.append(class_note(backend, tokenizer.backend_tokenizer, name))
    notes.append(obey_ends(checkpoint, tokenizer))
    return tuple(note for note in notes if note is not None)


def _adapter_note(checkpoint: Checkpoint, tokenizer: Any) -> str | None:
    """Return what is said of an adapter whose tokenizer gives tokens other ids than that of its base."""
    path = checkpoint.directory / TOKENIZER_FILE
    if checkpoint.tokenizer_directory == checkpoint.directory or not path.is_file():
        return None
    base = read_backend(path).get_vocab()
    others = [token for token, number in tokenizer.get_vocab().items() if base.get(token, number) != number]
    if not others:
        return None
    return (
        f"the adapter's tokenizer, which is used, gives {len(others):,} tokens other ids than the tokenizer.json of "
        f"its base, such as {others[0][:40]!r}: remove it if the adapter was trained with the base's"
    )


def obey_ends(checkpoint: Checkpoint, tokenizer: Any) -> str | None:
    """Let a transformers tokenizer add the tokens that its files ask for, and return what is said of it."""
    folder = checkpoint.tokenizer_directory
    if not getattr(tokenizer, "is_fast", False) or not (folder / TOKENIZER_FILE).is_file():
        return None
    kind = type(tokenizer)
    parameters = {} if kind.__module__.startswith("transformers.") else signature(kind).parameters
    own = {name: bool(parameters[name].default) for name in ENDS if name in parameters}
    return add_ends(tokenizer.backend_tokenizer, read_tokenizer_config(checkpoint), own)


def _check_types(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Check that all tokens of a text have type 0, as in a graph; XLNet and Funnel give one the type 2."""
    text = next(iter(tokenizer.all_special_tokens), "a")  # all that a vocabulary without words can read
    types = set(tokenizer(text).get("token_type_ids", ()))
    if any(types):
        raise WhitenError(
            f"'{checkpoint.model}': its tokenizer gives tokens of one text the types {sorted(types)} (token_type_ids), "
            "which is not supported: all would be 0, and vectors others"
        )


def _surplus_from(tokenizer: Any) -> int | None:
    if type(tokenizer).__name__ != "XLMTokenizer":
        return None
    from whiten_export.sources.xlm_tokenizer import surplus_pieces

    return max(tokenizer.get_vocab().values()) + 1 if surplus_pieces(tokenizer) else None


def _as_json(checkpoint: Checkpoint, tokenizer: Any) -> str:
    if getattr(tokenizer, "is_fast", False):
        content: str = tokenizer.backend_tokenizer.to_str()
        return content
    name = type(tokenizer).__name__
    try:
        if name == "XLMTokenizer":
            from whiten_export.sources.xlm_tokenizer import build_xlm_tokenizer

            return str(build_xlm_tokenizer(tokenizer).to_str())
        from transformers.convert_slow_tokenizer import convert_slow_tokenizer

        converted: str = convert_slow_tokenizer(tokenizer).to_str()
        return converted
    except (ValueError, KeyError, ImportError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise WhitenError(
            f"'{checkpoint.model}' has only a {name}, which cannot be written as tokenizer.json ({reason})"
        ) from error
