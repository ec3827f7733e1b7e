"""Tokenizers of published models, with all the files that their repositories have."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from support.published import tokenizer_json
from support.published.tokenizer_json import EXTRA_IDS, FAIRSEQ_TOKENS
from support.vocabularies import (
    Vocabulary,
    Writer,
    write_byte_bpe,
    write_sentencepiece,
    write_tokenizer_json,
    write_wordpiece,
)

UNLIMITED = 1000000000000000019884624838656
"""What transformers writes as the length of a tokenizer that states none."""

_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer.

    Attributes:
        vocabulary: writes the vocabulary's own files, or tokenizer.json where there are no others.
        config: content of tokenizer_config.json, besides the length.
        fast: makes the content of tokenizer.json from those files; None where it is written already, or missing.
        added: tokens that are not in the vocabulary's own files, with the ids after it.
        truncation: length to which tokenizer.json truncates and pads, as those do that were saved after training.
    """

    vocabulary: Writer
    config: Mapping[str, Any] = field(default_factory=dict)
    fast: Callable[[Path], Tokenizer] | None = None
    added: tuple[str, ...] = ()
    truncation: int | None = None

    def save(self, directory: Path, length: int) -> Vocabulary:
        """Write all files and return the tokens' ids."""
        ids = self.vocabulary(directory)
        ids |= {token: len(ids) + index for index, token in enumerate(self.added)}
        if self.fast is not None:
            tokenizer = self.fast(directory)
            tokenizer.add_special_tokens(list(self.added))
            if self.truncation is not None:
                tokenizer.enable_truncation(self.truncation)
                tokenizer.enable_padding(length=self.truncation, pad_token=self.config["pad_token"])
            tokenizer.save(str(directory / "tokenizer.json"))
        config = {**self.config, "model_max_length": length}
        if self.added:
            flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False) | {"special": True}
            config["added_tokens_decoder"] = {ids[token]: {"content": token, **flags} for token in self.added}
        _write(directory / "tokenizer_config.json", config)
        named = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
        _write(directory / "special_tokens_map.json", named)
        return ids


def wordpiece(
    lowercase: bool = True, fast: bool = True, truncation: int | None = None, **config: Any
) -> TokenizerFiles:
    """Return BERT's.

    Args:
        lowercase: whether it lower-cases.
        fast: whether there is a tokenizer.json beside vocab.txt; old repositories have none.
        truncation: length to which tokenizer.json truncates and pads.
        config: more of tokenizer_config.json.
    """
    return TokenizerFiles(
        partial(write_wordpiece, lowercase=lowercase),
        {
            "do_lower_case": lowercase,
            "tokenizer_class": "BertTokenizer",
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")},
            **config,
        },
        partial(tokenizer_json.wordpiece, lowercase=lowercase) if fast else None,
        truncation=truncation,
    )


def mpnet() -> TokenizerFiles:
    """Return MPNet's: BERT's words, RoBERTa's special tokens."""
    specials = (*FAIRSEQ_TOKENS, "[UNK]")
    return TokenizerFiles(
        partial(write_wordpiece, specials=specials, last=("<mask>",)),
        {"do_lower_case": True, "tokenizer_class": "MPNetTokenizer", **_fairseq("[UNK]")},
        partial(tokenizer_json.wordpiece, specials=(*specials, "<mask>"), ends=("<s>", "</s>")),
    )


def xlm_roberta(words: bool = True, tokenizer_class: str = "XLMRobertaTokenizer", **config: Any) -> TokenizerFiles:
    """Return XLM-R's: a SentencePiece model and tokenizer.json.

    Args:
        words: whether tokenizer.json splits at spaces first, as that of XLM-R itself; else as transformers converted
            it later, where runs of spaces are joined.
        tokenizer_class: as tokenizer_config.json has it.
        config: more of tokenizer_config.json.
    """
    return TokenizerFiles(
        partial(write_sentencepiece, file="sentencepiece.bpe.model", first=FAIRSEQ_TOKENS, skipped=3, last=("<mask>",)),
        {"tokenizer_class": tokenizer_class, **_fairseq("<unk>"), **config},
        partial(tokenizer_json.xlm_roberta, words=words),
    )


def t5() -> TokenizerFiles:
    """Return T5's: a SentencePiece model without a token in front."""
    return TokenizerFiles(
        partial(write_sentencepiece, file="spiece.model", last=EXTRA_IDS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
        {
            "tokenizer_class": "T5Tokenizer",
            "extra_ids": 100,
            "additional_special_tokens": list(reversed(EXTRA_IDS)),
            **{"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
        },
        tokenizer_json.t5,
    )


def llama(eos: bool, **config: Any) -> TokenizerFiles:
    """Return LLaMA's: BPE of SentencePiece.

    Args:
        eos: whether tokenizer.json puts `</s>` at the end of a text.
        config: more of tokenizer_config.json.
    """
    return TokenizerFiles(
        partial(
            write_sentencepiece,
            file="tokenizer.model",
            model_type="bpe",
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
        ),
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": eos,
            "clean_up_tokenization_spaces": False,
            "legacy": True,
            **{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
            **config,
        },
        partial(tokenizer_json.llama, eos=eos),
    )


def gemma() -> TokenizerFiles:
    """Return EmbeddingGemma's: BPE of SentencePiece without a space in front, `<bos>` and `<eos>` around a text."""
    return TokenizerFiles(
        partial(
            write_sentencepiece,
            file="tokenizer.model",
            model_type="bpe",
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            user_defined_symbols="<mask>",
            **{f"{name}_id": index for index, name in enumerate(("pad", "eos", "bos", "unk"))},
            **{f"{name}_piece": f"<{name}>" for name in ("pad", "eos", "bos", "unk")},
        ),
        {
            "tokenizer_class": "GemmaTokenizer",
            "add_bos_token": True,
            "add_eos_token": True,
            "clean_up_tokenization_spaces": False,
            "padding_side": "right",
            **{f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask")},
        },
        tokenizer_json.gemma,
    )


def qwen(eos: bool, **config: Any) -> TokenizerFiles:
    """Return Qwen's byte-level BPE, padded on the left, with a template for chats.

    Args:
        eos: whether tokenizer.json puts `<|endoftext|>` at the end of a text.
        config: more of tokenizer_config.json.
    """
    return TokenizerFiles(
        write_byte_bpe,
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_prefix_space": False,
            "bos_token": None,
            "eos_token": "<|im_end|>" if eos else "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "errors": "replace",
            "split_special_tokens": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": _CHAT,
            "padding_side": "left",
            **config,
        },
        partial(tokenizer_json.qwen, eos=eos),
        added=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    )


def gpt2() -> TokenizerFiles:
    """Return GPT-2's byte-level BPE, padded with its only special token."""
    return TokenizerFiles(
        partial(write_byte_bpe, last=("<|endoftext|>",)),
        {
            "tokenizer_class": "GPT2Tokenizer",
            **{f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "unk", "pad")},
        },
    )


def modernbert() -> TokenizerFiles:
    """Return ModernBERT's: nothing but tokenizer.json."""
    return TokenizerFiles(
        write_tokenizer_json,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": True,
            "model_input_names": ["input_ids", "attention_mask"],
            **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")},
        },
    )


def _fairseq(unknown: str) -> dict[str, str]:
    tokens = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "pad": "<pad>", "mask": "<mask>"}
    return {f"{name}_token": token for name, token in (tokens | {"unk": unknown}).items()}


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False), "utf-8")
