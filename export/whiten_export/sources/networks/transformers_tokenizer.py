"""Convert a transformers tokenizer to the format of Hugging Face tokenizers."""

from collections.abc import Sequence
from typing import Any

from whiten_export.sources.base import UNSET_LENGTH, SourceTokenizer
from whiten_export.sources.casing import lower_case
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_runtime.errors import WhitenError


def describe_tokenizer(checkpoint: Checkpoint, tokenizer: Any) -> SourceTokenizer:
    """Describe a transformers tokenizer as an export needs it.

    If sentence-transformers' files ask for lower-casing, it becomes part of the tokenizer, as it does there.
    """

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
    from whiten_export.sources.networks.xlm_tokenizer import surplus_pieces

    return max(tokenizer.get_vocab().values()) + 1 if surplus_pieces(tokenizer) else None


def _as_json(checkpoint: Checkpoint, tokenizer: Any) -> str:
    if getattr(tokenizer, "is_fast", False):
        content: str = tokenizer.backend_tokenizer.to_str()
        return content
    name = type(tokenizer).__name__
    try:
        if name == "XLMTokenizer":
            from whiten_export.sources.networks.xlm_tokenizer import build_xlm_tokenizer

            return str(build_xlm_tokenizer(tokenizer).to_str())
        from transformers.convert_slow_tokenizer import convert_slow_tokenizer

        converted: str = convert_slow_tokenizer(tokenizer).to_str()
        return converted
    except (ValueError, KeyError, ImportError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise WhitenError(
            f"'{checkpoint.model}' has only a {name}, which cannot be written as tokenizer.json ({reason})"
        ) from error
