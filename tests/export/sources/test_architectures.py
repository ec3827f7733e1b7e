"""Checkpoints whose `architectures` name another class than `AutoModel` makes: the class that wrote them reads them."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.checkpoints import write_json
from support.cli import ok
from whiten import Encoder
from whiten_export.sources.pytorch import PyTorchModel
from whiten_export.sources.resolve import resolve

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
_M2M = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_layers": 1}
_TEXTS = ["the cat sat", "a dog", "the dog and the cat sat on the mat"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "sizes"),
    [
        ("dpr", "DPRContextEncoder", _SIZES),
        ("dpr", "DPRQuestionEncoder", _SIZES),
        ("m2m_100", "M2M100Encoder", _M2M | {"pad_token_id": 1, "decoder_ffn_dim": 64, "decoder_attention_heads": 2}),
        ("t5", "T5ForConditionalGeneration", _T5),
        ("bert", "BertForMaskedLM", _SIZES),
        ("bert", "BertForSequenceClassification", _SIZES),
    ],
)
def test_a_network_is_read_by_the_class_that_wrote_it(
    kind: str, name: str, sizes: dict[str, Any], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "model"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "BertTokenizer"})
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(tokenizer), **sizes)
    made = _class(config, name)(config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    (folder / "model.safetensors").unlink()
    made.save_pretrained(folder)
    options = ("--layers", "1,2", "--whitening", "none", "--max-length", "32")
    ok("export", folder, *options, "--out", tmp_path / "bundle")
    network = _class(config, name).from_pretrained(folder).eval()
    network = network.get_encoder() if kind == "t5" else network
    with Encoder(tmp_path / "bundle") as encoder:
        vectors = encoder.encode(_TEXTS)
    for text, vector in zip(_TEXTS, vectors, strict=True):
        ids = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = network(
                input_ids=ids.input_ids, attention_mask=ids.attention_mask, output_hidden_states=True
            ).hidden_states
        np.testing.assert_allclose(vector, ((states[1] + states[2]) / 2)[0].mean(0), atol=2e-5)


def _class(config: Any, name: str) -> Any:
    return getattr(import_module(type(config).__module__.replace("configuration_", "modeling_")), name)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["Lfm2BidirectionalModel"], True),
        *((names, False) for names in (["BertForMaskedLM"], ["TFBertModel"], [], [7], None)),
    ],
)
def test_a_class_that_transformers_lacks_is_named(
    named: list[Any] | None, said: bool, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Such a class may let tokens attend to later ones, where the one in its place does not."""
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "model"))
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", settings | {"architectures": named})
    notes = PyTorchModel(resolve(str(folder)), False, "cpu").notes
    assert ["Lfm2BidirectionalModel" in note for note in notes] == [True] * said
