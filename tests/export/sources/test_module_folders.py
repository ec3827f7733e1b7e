"""Test what is read of sentence-transformers' folders, without loading a network."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.adapters import save_adapter
from support.once import once
from support.published import save_published
from whiten import WhitenError
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.checkpoints.published import read_published


@pytest.fixture
def copied(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a folder, to be changed."""

    def copy(name: str) -> Path:
        kept = once(tmp_path_factory, f"published-{name}", lambda path: save_published(name, path))
        return shutil.copytree(kept, tmp_path / name)

    return copy


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | settings), "utf-8")


def test_modules_are_applied_in_the_order_of_the_list(copied: Callable[[str], Path]) -> None:
    """sentence-transformers does not read idx."""
    folder = copied("labse")
    before = read_published(folder)
    listed = json.loads((folder / "modules.json").read_text("utf-8"))
    for number, module in zip((7, 3, 5, 1), listed, strict=True):
        module["idx"] = number
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    after = read_published(folder)
    assert ([*map(str, after.modules)], after.normalize) == ([*map(str, before.modules)], before.normalize)


def test_a_chat_template_around_texts_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("bge-base")
    outputs = {"method": "forward", "method_output_name": "last_hidden_state"}
    change(
        next(folder.rglob("sentence_bert_config.json")),
        modality_config={"text": outputs, "message": outputs | {"format": "flat"}},
        module_output_name="token_embeddings",
    )
    with pytest.raises(WhitenError, match="message"):
        read_published(folder)


@pytest.mark.slow
def test_an_adapter_is_not_the_embedding_model_that_its_base_is(copied: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra test-all")
    base = copied("bge-base")
    adapter = save_adapter(base, tmp_path / "adapter", "AutoModel", "FEATURE_EXTRACTION")
    assert resolve(str(base)).embeds_sentences
    found = resolve(str(adapter))
    assert (found.embeds_sentences, found.pooling, found.root) == (False, "mean", None)
