"""Test what config.json tells transformers.js: where the graph is, and whether its weights are a file of their own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from whiten_export.writing.client_files import rewrite_transformers_js, write_client_files
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE
from whiten_runtime.inference.options import Prompts

pytestmark = pytest.mark.slow

WITHOUT = {"dtype": "fp32"}
WITH = WITHOUT | {"use_external_data_format": {"model.onnx": 1}}


def written(root: Path, config: Mapping[str, Any], separate_weights: bool) -> dict[str, Any]:
    (root / "onnx").mkdir(exist_ok=True)
    (root / EXTERNAL_DATA_FILE).unlink(missing_ok=True)
    if separate_weights:
        (root / EXTERNAL_DATA_FILE).touch()
    write_client_files(root, config, 8, 48, Prompts(), "cosine")
    found: dict[str, Any] = json.loads((root / "config.json").read_bytes())
    return found


@pytest.mark.parametrize(("separate_weights", "want"), [(False, WITHOUT), (True, WITH)])
def test_transformers_js_is_told_the_files(tmp_path: Path, separate_weights: bool, want: dict[str, Any]) -> None:
    found = written(tmp_path, {"model_type": "bert"}, separate_weights)
    assert found == {"model_type": "bert", "max_position_embeddings": 48, "transformers.js_config": want}


def test_what_the_source_said_of_its_own_files_is_replaced(tmp_path: Path) -> None:
    """Repositories of the hub that hold ONNX graphs say which of theirs is loaded."""
    source = {"transformers.js_config": {"dtype": "q8", "use_external_data_format": {"model_q4.onnx": 2}}}
    assert written(tmp_path, source, False)["transformers.js_config"] == WITHOUT


@pytest.mark.parametrize("separate_weights", [False, True])
def test_rewriting_gives_the_bytes_that_writing_gives(tmp_path: Path, separate_weights: bool) -> None:
    config = {"model_type": "bert", "layer_norm_eps": 1e-12, "id2label": {"0": "ä"}, "beta": None}
    written(tmp_path, config, separate_weights)
    want = (tmp_path / "config.json").read_bytes()
    written(tmp_path, config, not separate_weights)
    assert (tmp_path / "config.json").read_bytes() != want
    rewrite_transformers_js(tmp_path, separate_weights)
    assert (tmp_path / "config.json").read_bytes() == want


@pytest.mark.parametrize("content", ["[]", "no object", "[" * 100_000])
def test_a_file_that_is_no_object_stays(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, "utf-8")
    rewrite_transformers_js(tmp_path, True)
    assert (tmp_path / "config.json").read_text("utf-8") == content
