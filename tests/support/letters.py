"""Small random networks whose tokens are letters, in folders of sentence-transformers: vocabularies of any size."""

import random
import string
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from support.checkpoints import random_network, write_json, write_modules
from support.vocabularies import with_ends

WIDTH = 32
PAD_FIRST = ("<pad>", "<s>", "</s>", "<unk>")
PAD_SECOND = ("<s>", "<pad>", "</s>", "<unk>")
"""Special tokens in the order of RoBERTa's vocabulary, whose positions are counted from the padding id."""

_SIZES = {
    "bloom": {"n_layer": 2, "n_head": 4, "hidden_size": WIDTH},
    "t5": {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4},
}


def letter_tokenizer(specials: tuple[str, ...], letters: str) -> Tokenizer:
    """Return a tokenizer of which each letter is a token, between the first and the third of RoBERTa's special ones."""
    ids = {token: number for number, token in enumerate((*specials, *letters))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.add_special_tokens(list(specials))
    tokenizer.post_processor = with_ends(tokenizer, "<s>", "</s>")
    return tokenizer


def save_letters(
    kind: str,
    folder: Path,
    positions: int,
    *,
    letters: str = string.ascii_lowercase,
    specials: tuple[str, ...] = PAD_FIRST,
    pooling: str = "mean",
    modules: bool = True,
    tokenizer_length: int | None = None,
    stated: int | None = None,
    **config: Any,
) -> Path:
    """Write a network of an architecture.

    `positions` is the `max_position_embeddings` of its config, `tokenizer_length` the length that its tokenizer states,
    and `stated` that of the folder of sentence-transformers.
    """
    import transformers

    tokenizer = letter_tokenizer(specials, letters)
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    length = {} if tokenizer_length is None else {"model_max_length": tokenizer_length}
    described = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **roles, **length)
    described.save_pretrained(folder)
    ids = {role: tokenizer.token_to_id(token) for role, token in roles.items()}
    usual = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    sizes = _SIZES.get(kind, usual) | {"max_position_embeddings": positions, "vocab_size": tokenizer.get_vocab_size()}
    sizes |= {f"{name.removesuffix('_token')}_token_id": number for name, number in ids.items()} | config
    network = random_network(transformers.AutoConfig.for_model(kind, **sizes), noise=0.2)
    network.save_pretrained(folder)
    if modules:
        write_modules(folder, "Transformer", "Pooling")
        modes = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
        chosen = {f"pooling_mode_{mode}": name == pooling for name, mode in modes.items()}
        write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH} | chosen)
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": stated, "do_lower_case": False})
    return folder


def letter_texts(lengths: list[int], letters: str = string.ascii_lowercase) -> list[str]:
    """Return a random text of each number of tokens, special ones included."""
    drawn = random.Random(0)
    return ["".join(drawn.choice(letters) for _ in range(max(0, length - 2))) for length in lengths]
