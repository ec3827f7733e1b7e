"""Bundles opened by the real sentence-transformers and the real fastembed, in a virtual environment of their own."""

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.checkpoints import sentences
from whiten_export.pipeline import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime import Encoder

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
TEXTS = [*sentences(60), "", "a", "long " * 400, "Ünïcödé 日本 👩‍👧 русский", "  spaces  "]


@pytest.fixture(scope="session")
def clients_python(pytestconfig: pytest.Config) -> Path:
    """Interpreter of the environment that holds `requirements.txt`, made once and kept in pytest's cache."""
    requirements = HERE / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("clients") / digest
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    complete = folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        installed = subprocess.run(command, capture_output=True, text=True, check=False)
        if installed.returncode and not os.environ.get("CI"):
            pytest.skip(f"pip could not install the clients: {installed.stderr[-300:]}")
        assert installed.returncode == 0, installed.stderr
        complete.touch()
    return python


@pytest.fixture(scope="session")
def bundles(
    minilm_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
) -> dict[str, Path]:
    """The real checkpoint; a normalised, cut one; byte-level BPE."""
    folder = tmp_path_factory.mktemp("for-clients")
    corpus = (str(corpus_file),)
    normalised = Recipe("minilm", layers=(1,), max_sentences=2000, dim=128, normalize=True, max_length=64)
    roberta = Recipe(str(checkpoint("roberta")), corpus=corpus)
    return {
        "minilm": minilm_bundle,
        "normalised": export_bundle(normalised, folder / "normalised").path,
        "roberta": export_bundle(roberta, folder / "roberta").path,
    }


@pytest.mark.parametrize("client", ["sentence_transformers", "fastembed"])
@pytest.mark.parametrize("name", ["minilm", "normalised", "roberta"])
def test_a_client_gives_our_vectors(
    client: str, name: str, clients_python: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    texts, out = tmp_path / "texts.json", tmp_path / "vectors.npy"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    command = [clients_python, HERE / f"with_{client}.py", bundles[name], texts, out]
    before = sorted(bundles[name].rglob("*"))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    with Encoder(bundles[name]) as encoder:
        ours = encoder.encode(TEXTS)
    theirs = np.load(out)
    assert theirs.shape == ours.shape
    difference = np.abs(theirs - ours).max(axis=1) / np.linalg.norm(ours, axis=1)
    assert difference.max() <= (1e-6 if name == "minilm" else 1e-5), difference.max()
    assert sorted(bundles[name].rglob("*")) == before
