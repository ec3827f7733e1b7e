"""Small random checkpoints of every architecture, laid out as the hub's repositories are."""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.sizes import LAYERS, MAX_LENGTH, WIDTH
from support.vocabularies import (
    Writer,
    write_byte_bpe,
    write_sentencepiece,
    write_tokenizer_json,
    write_word_bpe,
    write_wordpiece,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Family:
    """How a checkpoint is made.

    Attributes:
        model_type: transformers' name of the architecture.
        vocabulary: writes the tokenizer's own files.
        config: settings of the architecture, without sizes that all have.
        ids: settings of the config that hold a token's id.
        tokenizer_config: content of tokenizer_config.json, besides the length; None for no such file.
        unused: ids that the embeddings have besides the vocabulary's.
        noise: standard deviation of what is added to every parameter.
        small: part of the names of parameters that get a tenth of it.
        folded: summands of the word embeddings that depend on the position alone: RoBERTa's depend on the ids too.
        fused: whether onnxscript knows the attention of the family.
    """

    model_type: str
    vocabulary: Writer
    config: dict[str, Any] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    tokenizer_config: dict[str, Any] | None = field(default_factory=dict)
    unused: int = 0
    noise: float = 0.3
    small: str = "-"
    folded: int = 0
    fused: bool = True


_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LENGTH,
}
_UNCASED = {"do_lower_case": True}
_LIKE_BERT = {"pad_token_id": "[PAD]"}
_LIKE_ROBERTA = {"pad_token_id": "<pad>", "bos_token_id": "<s>", "eos_token_id": "</s>"}
_ROBERTA_SIZES = _SIZES | {"max_position_embeddings": MAX_LENGTH + 2, "type_vocab_size": 1}
_DEBERTA = _SIZES | {
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_DEBERTA_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_UNUSED_TOKENS = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")

FAMILIES = {
    "bert": Family("bert", write_wordpiece, _SIZES, _LIKE_BERT, _UNCASED, folded=2),
    # Cased, and no file says so.
    "spanbert": Family("bert", partial(write_wordpiece, lowercase=False), _SIZES, _LIKE_BERT, None, folded=2),
    # With the noise of the others, attention is so sharp that rounding a weight changes which token a text attends to.
    "distilbert": Family(
        "distilbert",
        write_wordpiece,
        {
            "dim": WIDTH,
            "n_layers": LAYERS,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": MAX_LENGTH,
        },
        _LIKE_BERT,
        _UNCASED,
        noise=0.2,
        folded=1,
    ),
    "electra": Family("electra", write_wordpiece, _SIZES | {"embedding_size": 16}, _LIKE_BERT, _UNCASED, folded=2),
    # Every token gets the same boxes: large ones would drown the words.
    "layoutlm": Family(
        "layoutlm",
        write_wordpiece,
        _SIZES | {"max_2d_position_embeddings": 64},
        _LIKE_BERT,
        _UNCASED,
        small="position_embeddings",
        folded=8,
    ),
    "squeezebert": Family(
        "squeezebert", write_wordpiece, _SIZES | {"embedding_size": WIDTH}, _LIKE_BERT, _UNCASED, folded=2, fused=False
    ),
    # It does not normalize: with the noise of the others, values would grow to tens of thousands.
    "mobilebert": Family(
        "mobilebert",
        write_wordpiece,
        _SIZES | {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
        _LIKE_BERT,
        _UNCASED,
        noise=0.1,
    ),
    "mpnet": Family(
        "mpnet",
        partial(write_wordpiece, specials=("<s>", "<pad>", "</s>", "<unk>", "[UNK]"), last=("<mask>",)),
        _SIZES | {"max_position_embeddings": MAX_LENGTH + 2},
        _LIKE_ROBERTA,
        _UNCASED,
        fused=False,
    ),
    "roberta": Family(
        "roberta",
        partial(write_byte_bpe, specials=_FAIRSEQ_TOKENS, last=("<mask>",)),
        _ROBERTA_SIZES,
        _LIKE_ROBERTA,
        folded=1,
    ),
    "deberta": Family(
        "deberta",
        partial(write_byte_bpe, specials=_DEBERTA_TOKENS, last=("[MASK]",)),
        _DEBERTA,
        _LIKE_BERT,
        {"do_lower_case": False, "vocab_type": "gpt2"},
        fused=False,
    ),
    "gpt2": Family(
        "gpt2",
        partial(write_byte_bpe, last=("<|endoftext|>",)),
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_inner": 64, "n_positions": MAX_LENGTH},
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"},
        folded=1,
    ),
    "modernbert": Family(
        "modernbert",
        write_tokenizer_json,
        _SIZES | {"local_attention": 16, "global_attn_every_n_layers": 3},
        {
            "pad_token_id": "[PAD]",
            "bos_token_id": "[CLS]",
            "cls_token_id": "[CLS]",
            "eos_token_id": "[SEP]",
            "sep_token_id": "[SEP]",
        },
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": True,
            "model_input_names": ["input_ids", "attention_mask"],
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
            "pad_token": "[PAD]",
            "sep_token": "[SEP]",
            "unk_token": "[UNK]",
        },
    ),
    "xlm": Family(
        "xlm",
        write_word_bpe,
        {
            "emb_dim": WIDTH,
            "n_layers": LAYERS,
            "n_heads": 4,
            "max_position_embeddings": MAX_LENGTH,
            "bos_index": 0,
            "eos_index": 1,
            "pad_index": 2,
            "unk_index": 3,
            "mask_index": 5,
        },
        {"pad_token_id": "<pad>", "bos_token_id": "<s>"},
        {"do_lowercase_and_remove_accent": True},
        folded=1,
        fused=False,
    ),
    "albert": Family(
        "albert",
        partial(
            write_sentencepiece,
            file="spiece.model",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols="[CLS],[SEP],[MASK]",
            user_defined_symbols='(,),"""",-,.,–,£,€',
        ),
        _SIZES | {"embedding_size": 16},
        {"pad_token_id": "<pad>", "bos_token_id": "[CLS]", "eos_token_id": "[SEP]"},
        folded=2,
    ),
    "t5": Family(
        "t5",
        partial(
            write_sentencepiece,
            file="spiece.model",
            last=tuple(f"<extra_id_{index}>" for index in reversed(range(100))),
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
        ),
        {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": LAYERS, "num_decoder_layers": 1, "num_heads": 4},
        {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"},
        unused=28,
        noise=0.2,
        fused=False,
    ),
    "xlm-roberta": Family(
        "xlm-roberta",
        partial(
            write_sentencepiece, file="sentencepiece.bpe.model", first=_FAIRSEQ_TOKENS, skipped=3, last=("<mask>",)
        ),
        _ROBERTA_SIZES,
        _LIKE_ROBERTA,
        folded=1,
    ),
    "camembert": Family(
        "camembert",
        partial(write_sentencepiece, file="sentencepiece.bpe.model", first=_UNUSED_TOKENS, skipped=1, last=("<mask>",)),
        _ROBERTA_SIZES,
        _LIKE_ROBERTA,
        folded=1,
    ),
    "deberta-v2": Family(
        "deberta-v2",
        partial(
            write_sentencepiece,
            file="spm.model",
            last=("[MASK]",),
            **{f"{name}_id": index for index, name in enumerate(("pad", "bos", "eos", "unk"))},
            **dict(zip(("pad_piece", "bos_piece", "eos_piece", "unk_piece"), _DEBERTA_TOKENS, strict=True)),
        ),
        _DEBERTA | {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True},
        _LIKE_BERT,
        {"do_lower_case": False, "vocab_type": "spm"},
        fused=False,
    ),
    "llama": Family(
        "llama",
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
        _SIZES | {"num_key_value_heads": 2},
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "legacy": False,
            "clean_up_tokenization_spaces": False,
        },
    ),
}

_DECODER = _SIZES | {"num_key_value_heads": 2}
_QWEN = {
    "ids": {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"},
    "tokenizer_config": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
    },
}
_END = partial(write_tokenizer_json, specials=("<|endoftext|>",), template="$A <|endoftext|>")
_ROTARY = _SIZES | {"rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}

DECODERS = {
    "mistral": Family(
        "mistral",
        FAMILIES["llama"].vocabulary,
        _DECODER | {"sliding_window": 16},
        {"bos_token_id": "<s>", "eos_token_id": "</s>", "pad_token_id": "</s>"},
        {
            **(FAMILIES["llama"].tokenizer_config or {}),
            "add_eos_token": True,
            "pad_token": "</s>",
            "padding_side": "left",
        },
    ),
    "qwen2": Family("qwen2", _END, _DECODER, **_QWEN),
    "qwen3": Family("qwen3", _END, _DECODER | {"head_dim": 32}, **_QWEN),
    # Two blocks of three attend to what is near.
    "gemma3_text": Family(
        "gemma3_text",
        partial(write_tokenizer_json, specials=("<pad>", "<eos>", "<bos>"), template="<bos> $A <eos>"),
        _DECODER
        | {
            "num_key_value_heads": 1,
            "head_dim": 32,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
            "sliding_window": 16,
            "use_bidirectional_attention": True,
        },
        {f"{name}_token_id": f"<{name}>" for name in ("bos", "eos", "pad")},
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad")},
        },
    ),
    "nomic_bert": Family("nomic_bert", write_wordpiece, _ROTARY, _LIKE_BERT, _UNCASED),
    "jina_embeddings_v3": Family(
        "jina_embeddings_v3",
        FAMILIES["xlm-roberta"].vocabulary,
        _ROTARY | {"type_vocab_size": 1},
        _LIKE_ROBERTA,
        {"tokenizer_class": "XLMRobertaTokenizer"},
    ),
}
"""Architectures of published embedding models alone, with the end of a text in tokenizer.json where theirs has it."""

_WIDTHS = frozenset(
    (
        *("hidden_size", "intermediate_size", "embedding_size", "intra_bottleneck_size"),
        *("dim", "hidden_dim", "n_embd", "n_inner", "emb_dim", "d_model", "d_kv", "d_ff"),
    )
)
"""Settings that grow with the width."""


def save_checkpoint(family: str | Family, directory: Path, widened: int = 1, **changes: Any) -> Path:
    """Write a random checkpoint with noise on every parameter, so that no two are equal and none is trivial.

    Args:
        family: a key of `FAMILIES`, or how it is made.
        directory: where to.
        widened: how many times `WIDTH` a hidden state has; the noise is divided by the root of it.
        changes: settings of the architecture in place of the family's.
    """
    import transformers

    made = FAMILIES[family] if isinstance(family, str) else family
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = made.vocabulary(directory)
    if made.tokenizer_config is not None:
        content = made.tokenizer_config | {"model_max_length": MAX_LENGTH}
        (directory / "tokenizer_config.json").write_text(json.dumps(content, indent=2), "utf-8")
    sizes = {name: value * widened if name in _WIDTHS else value for name, value in made.config.items()}
    sizes |= {name: vocabulary[token] for name, token in made.ids.items()} | changes
    config = transformers.AutoConfig.for_model(made.model_type, vocab_size=len(vocabulary) + made.unused, **sizes)
    network = random_network(config, noise=made.noise, small=made.small, widened=widened)
    network.save_pretrained(directory)
    return directory


def random_network(
    config: "PretrainedConfig",
    network: str = "AutoModel",
    *,
    noise: float,
    small: str = "-",
    widened: int = 1,
    seed: int = 1,
) -> "PreTrainedModel":
    """Make a network of random weights with noise on every parameter.

    Args:
        config: of transformers.
        network: class of transformers that makes it, an `Auto` class or the network's own.
        noise: standard deviation of what is added to every parameter; it is divided by the root of `widened`.
        small: part of the names of parameters that get a tenth of it.
        widened: how many times `WIDTH` a hidden state has.
        seed: of weights and noise.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    made = getattr(transformers, network)
    random = made.from_config(config) if network.startswith("Auto") else made(config)
    with torch.no_grad():
        for name, parameter in random.named_parameters():
            parameter.add_(torch.randn_like(parameter) * noise / widened**0.5 * (0.1 if small in name else 1))
    return random
