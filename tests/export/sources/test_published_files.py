"""Test how folders of sentence-transformers are read: modules, poolings, prompts and settings. Nothing needs torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.module_files import OLD, write_dense, write_json, write_modules, write_pooling, write_tensors
from whiten import WhitenError
from whiten_export.sources.checkpoints.published import read_published

NEW = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
OLD_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "last": "pooling_mode_lasttoken",
}
NEW_NAMES = {name: name for name in OLD_KEYS} | {"mean_sqrt_len": "mean_sqrt_len_tokens", "last": "lasttoken"}
SETTINGS = "config_sentence_transformers.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Transformer and its Pooling, of the mean."""
    write_modules(tmp_path, "Transformer", "Pooling")
    write_pooling(tmp_path)
    return tmp_path


def refused(root: Path, *parts: str) -> str:
    """Read a folder that must be refused in one line with these parts, and return the line."""
    with pytest.raises(WhitenError) as caught:
        read_published(root)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    return message


def test_a_plain_folder_has_the_mean_and_nothing_else(root: Path) -> None:
    published = read_published(root)
    assert (published.network, published.static, published.pooling, published.include_prompt) == (
        root,
        False,
        "mean",
        True,
    )
    assert (published.modules, published.normalize, published.prompts, published.files) == ((), False, {}, ())
    assert (published.max_seq_length, published.do_lower_case, published.route) == (None, False, None)
    assert published.similarity_fn_name == "cosine"


@pytest.mark.parametrize("mode", list(OLD_KEYS))
def test_every_pooling_is_read_from_old_and_new_files(root: Path, mode: str) -> None:
    flags = {key: key == OLD_KEYS[mode] for key in OLD_KEYS.values()}
    write_pooling(root, **flags)
    assert read_published(root).pooling == mode
    write_pooling(root, **{OLD_KEYS[mode]: True})
    assert read_published(root).pooling == mode
    for new in (NEW_NAMES[mode], [NEW_NAMES[mode]]):
        write_pooling(root, pooling_mode=new, include_prompt=False)
        published = read_published(root)
        assert (published.pooling, published.include_prompt) == (mode, False)


def test_old_flags_are_concatenated_in_the_order_of_sentence_transformers(root: Path) -> None:
    write_pooling(root, **dict.fromkeys(reversed(OLD_KEYS.values()), True))
    assert read_published(root).pooling == "cls+max+mean+mean_sqrt_len+weightedmean+last"
    write_pooling(root, **dict.fromkeys(OLD_KEYS.values(), False))
    assert read_published(root).pooling == "mean"


def test_new_poolings_are_concatenated_as_they_are_listed(root: Path) -> None:
    write_pooling(root, pooling_mode=["lasttoken", "mean", "cls"])
    assert read_published(root).pooling == "last+mean+cls"
    write_pooling(root, pooling_mode="max", pooling_mode_cls_token=True)
    assert read_published(root).pooling == "max"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"pooling_mode": "attention"}, "'attention'"),
        ({"pooling_mode": ["mean", "attention"]}, "'attention'"),
        ({"pooling_mode": ["mean", "mean"]}, "mean+mean"),
        ({"pooling_mode": 3}, "3"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_attention": True}, "'pooling_mode_attention'"),
        ({"pooling_mode": "mean", "temperature": 2}, "'temperature'"),
    ],
)
def test_unknown_poolings_and_their_settings_are_refused(root: Path, settings: dict[str, Any], found: str) -> None:
    write_pooling(root, **settings)
    refused(root, str(root / "1_Pooling" / "config.json"), found)


def test_modules_may_be_of_any_version(root: Path) -> None:
    listed = json.loads((root / "modules.json").read_text())
    listed[1]["type"], listed[0]["type"] = NEW, TRANSFORMER
    write_json(root / "modules.json", listed)
    assert read_published(root).network == root
    write_modules(root, "Transformer", "Pooling", first="0_Transformer")
    assert read_published(root).network == root / "0_Transformer"


def test_last_normalize_is_told_from_those_between(root: Path) -> None:
    write_modules(root, "Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm", "Normalize")
    for index in (2, 6):
        (root / f"{index}_Normalize").mkdir()
    write_dense(root / "3_Dense", 4, 4)
    write_json(root / "5_LayerNorm" / "config.json", {"dimension": 4})
    ones = np.ones(4, np.float32)
    write_tensors(root / "5_LayerNorm" / "model.safetensors", {"norm.weight": ones, "norm.bias": ones})
    published = read_published(root)
    assert list(map(str, published.modules)) == ["Normalize", "Dense(4 -> 4, Tanh)", "LayerNorm"]
    assert published.normalize
    assert published.files == (root / "3_Dense" / "model.safetensors", root / "5_LayerNorm" / "model.safetensors")


@pytest.mark.parametrize("content", [{}, {"module_input_name": "sentence_embedding", "module_output_name": None}])
def test_normalize_may_have_settings(root: Path, content: dict[str, Any]) -> None:
    write_modules(root, "Transformer", "Pooling", "Normalize")
    write_json(root / "2_Normalize" / "config.json", content)
    assert read_published(root).normalize


def test_normalize_of_tokens_is_refused(root: Path) -> None:
    write_modules(root, "Transformer", "Pooling", "Normalize")
    write_json(root / "2_Normalize" / "config.json", {"module_input_name": "token_embeddings"})
    refused(root, "module_input_name is 'token_embeddings'; wanted sentence_embedding")


def test_truncated_dimensions_come_after_the_normalisation(root: Path) -> None:
    write_modules(root, "Transformer", "Pooling", "Normalize")
    write_json(root / SETTINGS, {"truncate_dim": 2})
    published = read_published(root)
    assert list(map(str, published.modules)) == ["Normalize", "Truncate(2)"]
    assert not published.normalize


@pytest.mark.parametrize("dimension", [0, -1, "many", 2.5, True])
def test_impossible_truncations_are_refused(root: Path, dimension: object) -> None:
    write_json(root / SETTINGS, {"truncate_dim": dimension})
    refused(root, SETTINGS, "truncate_dim is")


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        (("Transformer", "CNN", "Pooling"), "module CNN is not supported"),
        (("Transformer", "Pooling", "Sparkle"), "module Sparkle is not supported"),
        (("Transformer", "Pooling", "my_code.Whiten"), "module 'my_code.Whiten' is not one of sentence-transformers"),
        (("my_code.Transformer", "Pooling"), "module 'my_code.Transformer'"),
        (("Transformer", "sentence_transformers_like.Pooling"), "module 'sentence_transformers_like.Pooling'"),
        (("BoW", "Pooling"), "the first module is BoW; wanted Transformer or StaticEmbedding"),
        (("Pooling", "Transformer"), "the first module is Pooling"),
        (("Transformer",), "has no Pooling"),
        (("Transformer", "Normalize"), "has no Pooling"),
        (("Transformer", "Normalize", "Pooling"), "module Pooling is not supported here"),
        (("Transformer", "Pooling", "WeightedLayerPooling"), "module WeightedLayerPooling is not supported here"),
        ((), "no module"),
    ],
)
def test_modules_that_cannot_be_reproduced_are_refused(tmp_path: Path, kinds: tuple[str, ...], found: str) -> None:
    write_modules(tmp_path, *kinds)
    write_pooling(tmp_path)
    refused(tmp_path, str(tmp_path / "modules.json"), found)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({}, "is not a list of modules"),
        ("Transformer", "is not a list of modules"),
        ([["Transformer"]], "is not a list of modules"),
        ([{"path": ""}], "is not a list of modules"),
        ([{"type": OLD + "Transformer", "path": "../x"}], "the path '../x' leads out of the folder"),
        ([{"type": OLD + "Transformer", "path": "a/../../x"}], "leads out of the folder"),
        ([{"type": OLD + "Transformer", "path": "/etc"}], "the path '/etc' leads out of the folder"),
    ],
)
def test_a_broken_list_of_modules_is_refused(tmp_path: Path, content: Any, found: str) -> None:
    write_json(tmp_path / "modules.json", content)
    refused(tmp_path, str(tmp_path / "modules.json"), found)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", SETTINGS, "sentence_bert_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"7", b'"text"', b"[1]"])
def test_files_that_are_no_json_or_hold_no_settings_are_refused(root: Path, name: str, content: bytes) -> None:
    (root / name).write_bytes(content)
    refused(root, name)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
def test_missing_files_are_named(root: Path, name: str) -> None:
    (root / name).unlink()
    refused(root, name, "cannot be read")
