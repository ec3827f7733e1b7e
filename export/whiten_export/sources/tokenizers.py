"""Describe the tokenizer of a checkpoint in the format of Hugging Face tokenizers."""

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.records import Side
from whiten_runtime.errors import WhitenError, from_clone
from whiten_runtime.inference.repetition import check_ends

UNSET_LENGTH = 1_000_000
"""Length from which a tokenizer counts as unlimited: transformers then writes a far larger number."""


@dataclass(frozen=True)
class SourceTokenizer:
    """Describes a checkpoint's tokenizer."""

    json: str  # content of `tokenizer.json`, in the format of Hugging Face tokenizers
    # function that returns the ids of the checkpoint's own tokenizer, truncated to a number of tokens
    own_ids: Callable[[Sequence[str], int], list[list[int]]]
    pad_token_id: int  # id of the padding token
    specials: Mapping[str, str]  # special tokens by their role, such as "pad_token"
    stated_length: int | None  # maximum number of tokens of a text, where the checkpoint states it; otherwise None
    # first id that stands for the unknown token. Such ids belong to pieces that the format must distinguish and
    # the checkpoint does not. None where there are none
    surplus_from: int | None = None
    unknown_token_id: int = 0  # id of the unknown token
    truncation_side: Side = "right"  # side from which tokens are removed from texts that are too long

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


def describe_tokenizer(checkpoint: Checkpoint, tokenizer: Any) -> SourceTokenizer:
    """Describe a transformers tokenizer, with the lower-casing that sentence-transformers' files ask for."""
    if checkpoint.published is not None and checkpoint.published.do_lower_case:
        if not getattr(tokenizer, "is_fast", False):
            raise WhitenError(f"'{checkpoint.model}' asks for do_lower_case, but has only a {type(tokenizer).__name__}")
        lower_case(tokenizer.backend_tokenizer)

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
        return ids

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


def check_tokenizer(checkpoint: Checkpoint, tokenizer: SourceTokenizer, rows: int) -> None:
    """Check that embeddings have a row for each id but special ones (EmbeddingGemma's images), and tokenising ends."""
    backend = Tokenizer.from_str(tokenizer.json)
    added = backend.get_added_tokens_decoder()
    ids = [number for number in backend.get_vocab().values() if number not in added or not added[number].special]
    if (largest := max(tokenizer.plain([*ids, *backend.encode("").ids, tokenizer.pad_token_id]))) >= rows:
        raise WhitenError(
            f"'{checkpoint.model}': its tokenizer has ids up to {largest}, but the embeddings have {rows} rows; use "
            "the tokenizer that the model was trained with"
        )
    check_ends(backend, f"'{checkpoint.model}'")


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
    """Read a `tokenizer.json`."""
    try:
        return Tokenizer.from_buffer(path.read_bytes())
    except Exception as error:  # tokenizers raises Exception itself
        raise WhitenError(f"{path}: cannot be read ({' '.join(str(error).split())}); copy the model again") from None


def file_tokenizer(checkpoint: Checkpoint, described: Mapping[str, Any]) -> SourceTokenizer:
    """Read `tokenizer.json`; `own_ids` uses transformers' tokenizer where it is installed, to check this against."""
    path = checkpoint.directory / TOKENIZER_FILE
    if not path.is_file():
        return _by_transformers(checkpoint)
    specials = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in described.items()
        if name.endswith("_token") and isinstance(token, (str, dict))
    }
    backend = read_backend(path)
    if checkpoint.published is not None and checkpoint.published.do_lower_case:
        lower_case(backend)
    text = backend.to_str()
    side: Side = "left" if described.get("truncation_side") == "left" else "right"
    numbers = (backend.token_to_id(specials[name]) for name in ("pad_token", "eos_token") if name in specials)
    pad = next((number for number in numbers if number is not None), 0)
    specials["pad_token"] = backend.id_to_token(pad)
    stated = described.get("model_max_length")
    length = int(stated) if isinstance(stated, int | float) and stated < UNSET_LENGTH else None

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        own = Tokenizer.from_str(text)
        own.no_padding()
        own.enable_truncation(max_length, direction=side)
        return [encoding.ids for encoding in own.encode_batch(list(texts))]

    try:
        judge = _by_transformers(checkpoint).own_ids
    except WhitenError:  # transformers is not installed, or does not know the architecture
        judge = own_ids
    return SourceTokenizer(text, judge, pad, specials, length, truncation_side=side)


def _by_transformers(checkpoint: Checkpoint) -> SourceTokenizer:
    try:
        from whiten_export.sources.networks.network import load_tokenizer, quiet
    except ImportError as error:
        raise WhitenError(
            f"'{checkpoint.model}' has no {TOKENIZER_FILE}, and making one needs {error.name}; install it "
            f"{from_clone('export')}"
        ) from error
    with quiet():
        return describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code=False))
