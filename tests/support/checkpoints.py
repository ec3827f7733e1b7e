"""Small random checkpoints with real tokenizers, written with save_pretrained as users' own are."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from whiten_export.corpus import Corpus
from whiten_export.recipe import BUILTIN_CORPUS

LAYERS, WIDTH, MAX_LENGTH = 4, 32, 48
ALPHABETS = "abcdefghijklmnopqrstuvwxyzäöüßéñ абвгдежзийклмнопрст 今日天気 الطقس 고양이 แมว 👩👧🐬 0123456789 .,;:!?%"


def sentences(count: int) -> list[str]:
    return list(islice(Corpus((BUILTIN_CORPUS,), None, count), count))


def _training_text() -> Iterator[str]:
    yield ALPHABETS
    yield from sentences(2000)


def _ends(tokenizer: Tokenizer, first: str, last: str) -> processors.TemplateProcessing:
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    pair = f"{first} $A {last} $B:1 {last}:1"
    return processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=ids)


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=1200, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(_training_text(), trainer)
    tokenizer.post_processor = _ends(tokenizer, "[CLS]", "[SEP]")
    return tokenizer


def byte_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    tokenizer.post_processor = _ends(tokenizer, "<s>", "</s>")
    return tokenizer


def _config(family: str, vocab_size: int) -> transformers.PretrainedConfig:
    common = {
        "vocab_size": vocab_size,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": MAX_LENGTH,
    }
    if family == "bert":
        return transformers.BertConfig(**common)
    if family == "roberta":
        positions = {"max_position_embeddings": MAX_LENGTH + 2}
        return transformers.RobertaConfig(
            **common | positions, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2
        )
    if family == "distilbert":
        return transformers.DistilBertConfig(
            vocab_size=vocab_size,
            dim=WIDTH,
            n_layers=LAYERS,
            n_heads=4,
            hidden_dim=64,
            max_position_embeddings=MAX_LENGTH,
        )
    if family == "electra":
        return transformers.ElectraConfig(**common, embedding_size=16)
    raise ValueError(family)


def save_checkpoint(family: str, directory: Path) -> Path:
    """Write a random checkpoint with noise on every parameter, so that no two are equal and none is trivial."""
    tokenizer = byte_bpe() if family == "roberta" else wordpiece()
    config = _config(family, tokenizer.get_vocab_size())
    torch.manual_seed(1)
    network = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    network.save_pretrained(directory)
    specials = ("<s>", "</s>", "<pad>") if family == "roberta" else ("[CLS]", "[SEP]", "[PAD]")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=specials[0],
        sep_token=specials[1],
        pad_token=specials[2],
        unk_token="<unk>" if family == "roberta" else "[UNK]",
        model_max_length=MAX_LENGTH,
    ).save_pretrained(directory)
    return directory
