"""A Chinese model that the catalogue does not know, by its id of the hub: small random weights laid out as BGE's."""

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizer

from support.cli import ok
from support.hub import make_snapshot
from support.published import peer, save
from whiten import Encoder

pytestmark = pytest.mark.slow

MODEL = "BAAI/bge-small-zh-v1.5"
TEXTS = [
    "今天天气很好。",
    "銀行提高了利率，股市下跌。",
    "苹果iPhone 15的价格是多少？",
    "猫",
    "",
    "𠮷野家 in 東京",
    "长文" * 400,
]


def test_a_chinese_model_gives_the_vectors_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(TEXTS, vocab_size=400, min_frequency=1)
    words.save_model(str(tmp_path))
    folder = tmp_path / "bert"
    BertTokenizer.from_pretrained(tmp_path).save_pretrained(folder)
    config = BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=512,
    )
    BertModel(config).save_pretrained(folder)
    network = Transformer(str(folder), max_seq_length=512)
    modules = [network, Pooling(64, pooling_mode="cls"), Normalize()]
    published = save(modules, make_snapshot(tmp_path / "hub", MODEL))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    ok("export", MODEL, "--out", tmp_path / "bundle")
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.token_count("今天天气很好。") == 9  # a token for each character
        np.testing.assert_allclose(encoder.encode(TEXTS), peer(published).encode(TEXTS), rtol=0, atol=1e-6)
