"""Test that a network gets all of its weights and none is left over, and settings of attention that no CPU has."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from sentence_transformers.sentence_transformer.modules import Pooling

from support.checkpoints import random_network, write_json
from support.published import save, transformer
from whiten import WhitenError
from whiten_export.proof.gate import Case
from whiten_export.sources.config import plain_attention
from whiten_export.sources.network import check_numbers, load_config, load_network
from whiten_export.sources.resolve import resolve
from whiten_export.sources.sentence_transformers import encode_published

DISTANCES = "encoder.layer.0.attention.self.distance_embedding.weight"


@pytest.fixture
def altered(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a family's checkpoint with some weights added and some left out."""

    def get(family: str = "bert", *, add: Iterable[str] = (), leave_out: str = "\0") -> Path:
        folder = Path(shutil.copytree(checkpoint(family), tmp_path / f"tiny-{family}"))
        weights = load_file(folder / "model.safetensors")
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(leave_out)}
        added = {name: np.ones((3, 4), np.float32) for name in add}
        save_file(kept | added, folder / "model.safetensors", {"format": "pt"})
        return folder

    return get


def load(folder: Path, pooler: bool = False) -> object:
    found = resolve(str(folder))
    return load_network(found, load_config(found, False), False, pooler)[0]


def refused(folder: Path, pooler: bool = False) -> str:
    """Load a checkpoint that must be refused in one line, and return the line."""
    with pytest.raises(WhitenError) as caught:
        load(folder, pooler)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_weights_that_transformers_does_not_take_are_refused(altered: Callable[..., Path], prefix: str) -> None:
    """Such as those of relative positions, which transformers 5 no longer computes for BERT."""
    message = refused(altered(add=[prefix + DISTANCES]))
    assert f"'{prefix}{DISTANCES}'" in message


def test_weights_of_own_code_that_is_not_run_are_refused(altered: Callable[..., Path]) -> None:
    """As the projection of voyage-4-nano; without such code it is a head, which hidden states do not depend on."""
    heads = ("cls.predictions.bias", "qa_outputs.weight", "vocab_projector.bias", "logit_scale", "sparse_linear.bias")
    folder = altered(add=["linear.weight", *heads])
    assert load(folder)
    for kind, own in (("tokenizer_config.json", "AutoTokenizer"), ("config.json", "AutoConfig")):  # not of the network
        previous = (folder / kind).read_text("utf-8")
        write_json(folder / kind, json.loads(previous) | {"auto_map": {own: "own.Own"}})
        assert load(folder)
        (folder / kind).write_text(previous, "utf-8")
    assert "'linear.weight'" in refused(rewritten(folder, auto_map={"AutoModel": "own.Model"}))


def rewritten(folder: Path, **changes: object) -> Path:
    """Change settings of a checkpoint's config.json."""
    content = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", content | changes)
    return folder


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("bert", ["cls.predictions.bias", "cls.predictions.transform.dense.weight", "cls.seq_relationship.bias"]),
        ("bert", ["embeddings.position_ids", "classifier.weight", "classifier.bias", "score.weight"]),
        ("roberta", ["lm_head.dense.weight", "lm_head.bias"]),
        ("gpt2", ["h.0.attn.masked_bias", "lm_head.weight"]),
        ("llama", ["layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"]),
        ("distilbert", ["vocab_transform.weight", "qa_outputs.bias"]),
        ("t5", ["decoder.block.0.layer.0.SelfAttention.q.bias", "lm_head.weight"]),
    ],
)
def test_heads_and_constants_of_older_checkpoints_are_left_out(
    altered: Callable[..., Path], family: str, names: list[str]
) -> None:
    assert load(altered(family, add=names))


def test_a_whole_language_model_is_a_checkpoint_of_its_network(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "tiny"))
    config = transformers.AutoConfig.from_pretrained(folder)
    random_network(config, "BertForMaskedLM", noise=0.3).save_pretrained(folder)
    assert any(name.startswith("cls.predictions.") for name in load_file(folder / "model.safetensors"))
    assert load(folder)
    assert "'pooler.dense.bias'" in refused(folder, pooler=True)


def test_another_kind_of_pooler_is_refused_only_where_it_is_needed(altered: Callable[..., Path]) -> None:
    folder = altered(add=["pooler.gate.weight"])
    assert load(folder)
    assert "'pooler.gate.weight'" in refused(folder, pooler=True)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_missing_weights_of_a_block_are_refused(altered: Callable[..., Path], family: str) -> None:
    names = {"bert": "encoder.layer.2.", "gpt2": "h.2.", "t5": "encoder.block.2."}
    assert f"'{names[family]}" in refused(altered(family, leave_out=names[family]))


FLASH = "flash_attention_2"
SETTINGS = "sentence_bert_config.json"


@pytest.fixture(scope="module", params=["bert", "roberta"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    first = transformer(request.param)
    pooling = Pooling(first.get_embedding_dimension(), "mean")
    return save([first, pooling], tmp_path_factory.mktemp("published") / "model")


def vectors(folder: Path) -> np.ndarray:
    found = resolve(str(folder))
    assert load_network(found, load_config(found, False), False)
    return encode_published(found, [Case((), texts=("the cat sat", "a"))], 24, False, "cpu").vectors[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (SETTINGS, {"model_args": {"attn_implementation": FLASH}}),
        (SETTINGS, {"model_kwargs": {"attn_implementation": "flash_attention_3", "dtype": "bfloat16"}}),
        (SETTINGS, {"config_kwargs": {"attn_implementation": FLASH}}),
        (SETTINGS, {"model_args": {"attn_implementation": FLASH}, "unpad_inputs": True}),
        ("config.json", {"_attn_implementation": "flash_attention_3"}),
        ("config.json", {"attn_implementation": {"": FLASH}}),
    ],
    ids=range(6),
)
def test_vectors_are_those_of_the_same_folder_without_it(
    plain: Path, tmp_path: Path, name: str, changes: dict[str, object]
) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "copy"))
    content = json.loads((folder / name).read_text("utf-8"))
    settings = {key: value for key, value in content.items() if key not in ("model_kwargs", "config_kwargs")}
    write_json(folder / name, settings | changes)
    np.testing.assert_allclose(vectors(folder), vectors(plain), atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"model_args": {"attn_implementation": "sdpa"}}, {"model_args": None}])
def test_other_folders_are_loaded_as_they_were(plain: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    """The proof in the bundle then stays the same, to the last digit."""
    folder = Path(shutil.copytree(plain, tmp_path / "copy"))
    content = json.loads((folder / SETTINGS).read_text("utf-8"))
    write_json(folder / SETTINGS, content | changes)
    assert plain_attention(resolve(str(folder))) == {}


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_numbers_without_the_scales_that_they_need_are_refused(
    altered: Callable[..., Path], kind: torch.dtype, suffix: str
) -> None:
    """transformers converts them, and computes vectors that are far from those of the weights that were rounded."""
    folder = altered()
    tensors = load_tensors(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("query.weight"))
    tensors[name] = tensors[name].to(kind)
    (folder / "model.safetensors").unlink()
    if suffix == ".bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_tensors(tensors, folder / "model.safetensors", {"format": "pt"})
    assert re.search(rf"'{name}' holds (F8|FLOAT8|I8|INT8|BOOL)\w*, without a scale", refused(folder))


@pytest.mark.parametrize("config", ["missing", None, {"quant_method": "nosuch"}, {"quant_method": "fp8"}], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_float8_is_read_where_its_scales_are_in_the_file(
    altered: Callable[..., Path], config: object, scaled: bool
) -> None:
    """A config that names a quantisation says nothing of numbers whose scales are lost."""
    if config == {"quant_method": "fp8"}:
        pytest.importorskip("accelerate", reason="needs the extra test-all")  # by which transformers reads it
    folder, scale = altered(), 0.01
    tensors = load_tensors(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("query.weight"))
    weight = tensors[name].clone()
    tensors[name] = (weight / scale).to(torch.float8_e4m3fn)
    if scaled:
        tensors[f"{name}_scale_inv"] = torch.full((1, 1), scale)
    save_tensors(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", settings | ({} if config == "missing" else {"quantization_config": config}))
    if not scaled or config != {"quant_method": "fp8"}:
        assert name.removeprefix("bert.") in refused(folder)
        return
    network: Any = load(folder)
    read = dict(network.named_parameters())[name]
    torch.testing.assert_close(read.data, weight, rtol=0.07, atol=scale)


@pytest.mark.parametrize(("bad", "place"), [(math.nan, 0), (math.inf, 17), (-math.inf, -1)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_weight_that_is_no_number_is_refused(tmp_path: Path, kind: torch.dtype, place: int, bad: float) -> None:
    words = torch.nn.Embedding(30, 5, dtype=kind)
    network = torch.nn.ModuleDict({"words": words, "none": torch.nn.Embedding(0, 5)})
    check_numbers(network, [tmp_path / "model.onnx"])
    words.weight.data.view(-1)[place] = bad
    with pytest.raises(WhitenError, match=r"words\.weight"):
        check_numbers(network, [tmp_path / "model.onnx"])
