"""Test that sentence-transformers opens the folders that stand for published models, and that texts come out apart."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from support.published import PUBLISHED, SPECIAL, save_published

pytestmark = pytest.mark.slow

ROWS = {**PUBLISHED, **SPECIAL}
TEXTS = [
    "The cat sits on the mat.",
    "Interest rates rose again in March, the bank said.",
    "a",
    "今日天気 über den See",
    "word " * 200,
]
ROUNDED = ("half", "bfloat16", "static-half")
"""Saved with few digits: transformers 5 computes with as few."""

PADDED = ("cnn",)
"""Vectors depend on the other texts of a batch."""

SAME = {"default-prompt": {"passage"}}
"""Prompts that give what no prompt gives."""


@pytest.fixture(params=[name for name, row in ROWS.items() if row.opens])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    if (missing := ROWS[chosen].missing) is not None:
        pytest.skip(missing)
    return chosen


def test_texts_come_out_apart(name: str, tmp_path: Path) -> None:
    model = SentenceTransformer(str(save_published(name, tmp_path / name)), device="cpu")
    vectors = model.encode(TEXTS, batch_size=1)
    if name not in (*ROUNDED, *PADDED):
        np.testing.assert_allclose(model.encode(TEXTS, batch_size=8), vectors, atol=1e-5)
    assert np.all(np.isfinite(vectors))
    assert np.max(_cosines(vectors, vectors) - np.eye(len(TEXTS))) < 0.999
    named = {key for key, prompt in model.prompts.items() if prompt} - SAME.get(name, set())
    for key in sorted(named):
        assert np.max(np.diag(_cosines(model.encode(TEXTS[:2], prompt_name=key), vectors[:2]))) < 0.999


def test_names_are_those_of_the_rows() -> None:
    assert not PUBLISHED.keys() & SPECIAL.keys()
    assert all(row.name == name for name, row in ROWS.items())


def test_an_unknown_module_is_refused(tmp_path: Path) -> None:
    folder = save_published("unknown-module", tmp_path)
    with pytest.raises(ValueError, match="my_code"):
        SentenceTransformer(str(folder), device="cpu")


def test_files_are_as_sentence_transformers_saves_them(tmp_path: Path) -> None:
    written = save_published("granite-small-r2", tmp_path / "written")
    SentenceTransformer(str(written), device="cpu").save(str(tmp_path / "saved"), create_model_card=False)
    files = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Normalize/config.json")
    for file in files:
        assert _content(written / file) == _content(tmp_path / "saved" / file)


def _content(file: Path) -> object:
    return json.loads(file.read_text("utf-8"))


def _cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    units = [side.astype(float) / np.linalg.norm(side.astype(float), axis=1, keepdims=True) for side in (left, right)]
    return units[0] @ units[1].T
