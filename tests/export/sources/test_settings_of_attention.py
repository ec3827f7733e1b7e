"""Test that a folder that asks for flash attention, which no CPU has, is compared with sentence-transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Pooling

from support.checkpoints import write_json
from support.published import save, transformer
from whiten_export.proof.gate import Request
from whiten_export.sources.describe.checkpoint import resolve
from whiten_export.sources.load.network import load_config, load_network
from whiten_export.sources.load.sentence_transformers import _attention, encode_published

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
    return encode_published(found, [Request("", ("the cat sat", "a"))], 24, False, "cpu").vectors[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (SETTINGS, {"model_args": {"attn_implementation": FLASH}}),
        (SETTINGS, {"model_kwargs": {"attn_implementation": "flash_attention_3", "dtype": "bfloat16"}}),
        (SETTINGS, {"model_kwargs": {"attn_implementation": {"": FLASH}}}),
        (SETTINGS, {"config_kwargs": {"attn_implementation": FLASH}}),
        (SETTINGS, {"model_args": {"attn_implementation": FLASH}, "unpad_inputs": True}),
        ("config.json", {"attn_implementation": FLASH}),
        ("config.json", {"_attn_implementation": "flash_attention_3"}),
        ("config.json", {"attn_implementation": {"": FLASH}}),
    ],
    ids=range(8),
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
    assert _attention(resolve(str(folder))) == {}
