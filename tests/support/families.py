"""The table of the small checkpoints: for each architecture its settings and its kind of tokenizer."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from support.vocabularies import (
    Writer,
    write_byte_bpe,
    write_sentencepiece,
    write_tokenizer_json,
    write_word_bpe,
    write_wordpiece,
)

LAYERS, WIDTH, MAX_LENGTH = 4, 32, 48
"""Sizes of every checkpoint, and so of the golden bundle that was made of one."""

WIDENED, WIDENED_LAYERS = 4, 2
"""Sizes of the networks whose graphs are tested: at a width of 32, the noise of 8 bits does not average out, and a
trace takes as long as the network is deep. Two layers have every kind of attention that a network has."""

SINCE_TRANSFORMERS_5 = frozenset({"gte", "nomic_bert"})
"""Architectures that transformers 4 has not: there they run by their authors' own code."""


@dataclass(frozen=True)
class Family:
    """Says how a checkpoint is made."""

    model_type: str  # transformers' name of the architecture
    vocabulary: Writer  # writes the tokenizer's own files
    config: dict[str, Any] = field(default_factory=dict)  # settings of the architecture
    ids: dict[str, str] = field(default_factory=dict)  # settings that hold a token's id
    tokenizer_config: dict[str, Any] | None = field(default_factory=dict)  # tokenizer_config.json; None for no file
    unused: int = 0  # ids that the embeddings have besides the vocabulary's
    noise: float = 0.3  # standard deviation of what is added to every parameter
    small: str = "-"  # part of the names of parameters that get a tenth of it


def _ids(**tokens: str) -> dict[str, str]:
    return {f"{name}_token_id": token for name, token in tokens.items()}


def _tokens(tokenizer_class: str, **tokens: str) -> dict[str, str]:
    return {"tokenizer_class": tokenizer_class} | {f"{name}_token": token for name, token in tokens.items()}


_FAST = "PreTrainedTokenizerFast"
_UNCASED = {"do_lower_case": True}
_LIKE_BERT = _ids(pad="[PAD]")
_LIKE_ROBERTA = _ids(pad="<pad>", bos="<s>", eos="</s>")
_FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_CAMEMBERT_TOKENS = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
_DEBERTA_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_MPNET_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "[UNK]")

_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LENGTH,
}
_ROBERTA_SIZES = _SIZES | {"max_position_embeddings": MAX_LENGTH + 2, "type_vocab_size": 1}
_DISTILBERT_SIZES = {
    "dim": WIDTH,
    "n_layers": LAYERS,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": MAX_LENGTH,
}
_XLM_SIZES = {"emb_dim": WIDTH, "n_layers": LAYERS, "n_heads": 4, "max_position_embeddings": MAX_LENGTH}
_XLM_INDICES = {"bos_index": 0, "eos_index": 1, "pad_index": 2, "unk_index": 3, "mask_index": 5}
_GPT2_SIZES = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_inner": 64, "n_positions": MAX_LENGTH}
_T5_SIZES = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": LAYERS, "num_decoder_layers": 1, "num_heads": 4}
_DEBERTA = _SIZES | {
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_MOBILE_BERT = {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2}
_DECODER = _SIZES | {"num_key_value_heads": 2}
_ROTARY = _SIZES | {"rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}
_GEMMA = _DECODER | {
    "num_key_value_heads": 1,
    "head_dim": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 16,
    "use_bidirectional_attention": True,
}

_ALBERT_PIECES = partial(
    write_sentencepiece,
    file="spiece.model",
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    control_symbols="[CLS],[SEP],[MASK]",
    user_defined_symbols='(,),"""",-,.,–,£,€',
)
_T5_PIECES = partial(
    write_sentencepiece,
    file="spiece.model",
    last=tuple(f"<extra_id_{index}>" for index in reversed(range(100))),
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
)
_XLMR_PIECES = partial(
    write_sentencepiece, file="sentencepiece.bpe.model", first=_FAIRSEQ_TOKENS, skipped=3, last=("<mask>",)
)
_CAMEMBERT_PIECES = partial(
    write_sentencepiece, file="sentencepiece.bpe.model", first=_CAMEMBERT_TOKENS, skipped=1, last=("<mask>",)
)
_DEBERTA_PIECES = partial(
    write_sentencepiece,
    file="spm.model",
    last=("[MASK]",),
    **{f"{name}_id": index for index, name in enumerate(("pad", "bos", "eos", "unk"))},
    **dict(zip(("pad_piece", "bos_piece", "eos_piece", "unk_piece"), _DEBERTA_TOKENS, strict=True)),
)
_LLAMA_PIECES = partial(
    write_sentencepiece,
    file="tokenizer.model",
    model_type="bpe",
    byte_fallback=True,
    split_digits=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    allow_whitespace_only_pieces=True,
)
_LLAMA_TOKENS = _tokens("LlamaTokenizer", bos="<s>", eos="</s>", unk="<unk>") | {
    "add_bos_token": True,
    "add_eos_token": False,
    "legacy": False,
    "clean_up_tokenization_spaces": False,
}

FAMILIES = {
    "bert": Family("bert", write_wordpiece, _SIZES, _LIKE_BERT, _UNCASED),
    # Cased, and no file says so.
    "spanbert": Family("bert", partial(write_wordpiece, lowercase=False), _SIZES, _LIKE_BERT, None),
    # With the noise of the others, attention is so sharp that rounding a weight changes which token a text attends to.
    "distilbert": Family("distilbert", write_wordpiece, _DISTILBERT_SIZES, _LIKE_BERT, _UNCASED, noise=0.2),
    "electra": Family("electra", write_wordpiece, _SIZES | {"embedding_size": 16}, _LIKE_BERT, _UNCASED),
    # Every token gets the same boxes: large ones would drown the words.
    "layoutlm": Family(
        "layoutlm",
        write_wordpiece,
        _SIZES | {"max_2d_position_embeddings": 64},
        _LIKE_BERT,
        _UNCASED,
        small="position_embeddings",
    ),
    "squeezebert": Family("squeezebert", write_wordpiece, _SIZES | {"embedding_size": WIDTH}, _LIKE_BERT, _UNCASED),
    # It does not normalize: with the noise of the others, values would grow to tens of thousands.
    "mobilebert": Family("mobilebert", write_wordpiece, _SIZES | _MOBILE_BERT, _LIKE_BERT, _UNCASED, noise=0.1),
    "mpnet": Family(
        "mpnet",
        partial(write_wordpiece, specials=_MPNET_TOKENS, last=("<mask>",)),
        _SIZES | {"max_position_embeddings": MAX_LENGTH + 2},
        _LIKE_ROBERTA,
        _UNCASED,
    ),
    "roberta": Family(
        "roberta", partial(write_byte_bpe, specials=_FAIRSEQ_TOKENS, last=("<mask>",)), _ROBERTA_SIZES, _LIKE_ROBERTA
    ),
    "deberta": Family(
        "deberta",
        partial(write_byte_bpe, specials=_DEBERTA_TOKENS, last=("[MASK]",)),
        _DEBERTA,
        _LIKE_BERT,
        {"do_lower_case": False, "vocab_type": "gpt2"},
    ),
    "gpt2": Family(
        "gpt2",
        partial(write_byte_bpe, last=("<|endoftext|>",)),
        _GPT2_SIZES,
        _ids(bos="<|endoftext|>", eos="<|endoftext|>"),
    ),
    "modernbert": Family(
        "modernbert",
        write_tokenizer_json,
        _SIZES | {"local_attention": 16, "global_attn_every_n_layers": 3},
        _ids(pad="[PAD]", bos="[CLS]", cls="[CLS]", eos="[SEP]", sep="[SEP]"),
        _tokens(_FAST, cls="[CLS]", mask="[MASK]", pad="[PAD]", sep="[SEP]", unk="[UNK]")
        | {"clean_up_tokenization_spaces": True, "model_input_names": ["input_ids", "attention_mask"]},
    ),
    "xlm": Family(
        "xlm",
        write_word_bpe,
        _XLM_SIZES | _XLM_INDICES,
        _ids(pad="<pad>", bos="<s>"),
        {"do_lowercase_and_remove_accent": True},
    ),
    "albert": Family(
        "albert", _ALBERT_PIECES, _SIZES | {"embedding_size": 16}, _ids(pad="<pad>", bos="[CLS]", eos="[SEP]")
    ),
    "t5": Family(
        "t5", _T5_PIECES, _T5_SIZES, _ids(pad="<pad>", eos="</s>", decoder_start="<pad>"), unused=28, noise=0.2
    ),
    "xlm-roberta": Family("xlm-roberta", _XLMR_PIECES, _ROBERTA_SIZES, _LIKE_ROBERTA),
    "camembert": Family("camembert", _CAMEMBERT_PIECES, _ROBERTA_SIZES, _LIKE_ROBERTA),
    "deberta-v2": Family(
        "deberta-v2",
        _DEBERTA_PIECES,
        _DEBERTA | {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True},
        _LIKE_BERT,
        {"do_lower_case": False, "vocab_type": "spm"},
    ),
    "llama": Family("llama", _LLAMA_PIECES, _DECODER, _ids(bos="<s>", eos="</s>"), _LLAMA_TOKENS),
}
"""Architectures whose layers are exported, with the files of their own tokenizers."""

_END = "<|endoftext|>"
_QWEN = partial(write_tokenizer_json, specials=(_END,), template=f"$A {_END}")
_QWEN_TOKENS = _tokens(_FAST, eos=_END, pad=_END) | {"padding_side": "left"}
_GEMMA_TOKENS = {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>"}

DECODERS = {
    "mistral": Family(
        "mistral",
        _LLAMA_PIECES,
        _DECODER | {"sliding_window": 16},
        _ids(bos="<s>", eos="</s>", pad="</s>"),
        _LLAMA_TOKENS | {"add_eos_token": True, "pad_token": "</s>", "padding_side": "left"},
    ),
    "qwen2": Family("qwen2", _QWEN, _DECODER, _ids(bos=_END, eos=_END), _QWEN_TOKENS),
    "qwen3": Family("qwen3", _QWEN, _DECODER | {"head_dim": 32}, _ids(bos=_END, eos=_END), _QWEN_TOKENS),
    # Two blocks of three attend to what is near.
    "gemma3_text": Family(
        "gemma3_text",
        partial(write_tokenizer_json, specials=("<pad>", "<eos>", "<bos>"), template="<bos> $A <eos>"),
        _GEMMA,
        _ids(**_GEMMA_TOKENS),
        _tokens(_FAST, **_GEMMA_TOKENS),
    ),
    "gte": Family(
        "gte",
        _XLMR_PIECES,
        _ROTARY | {"type_vocab_size": 1},
        _LIKE_ROBERTA,
        {"tokenizer_class": "XLMRobertaTokenizer"},
    ),
    "nomic_bert": Family("nomic_bert", write_wordpiece, _ROTARY, _LIKE_BERT, _UNCASED),
    "jina_embeddings_v3": Family(
        "jina_embeddings_v3",
        _XLMR_PIECES,
        _ROTARY | {"type_vocab_size": 1},
        _LIKE_ROBERTA,
        {"tokenizer_class": "XLMRobertaTokenizer"},
    ),
}
"""Architectures of published embedding models alone, with the end of a text in tokenizer.json where theirs has it."""
