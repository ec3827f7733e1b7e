"""Test the server with the real clients, unmodified, in an environment of their own: vectors, and what errors say."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.corpus import sentences
from support.once import installed_environment
from support.server import RunningServer
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

HERE = Path(__file__).parent
TEXTS = [
    *("Herons stand still in the water and wait for fish.", "The central bank raised its interest rates again."),
    *(*sentences(40), "a", "long " * 400, "Ünïcödé 日本 👩‍👧 русский", "  spaces  "),
]
CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
"""Name of cl100k_base.tiktoken in tiktoken's cache: the SHA-1 of its address."""

WANTED: dict[str, Callable[[Encoder], Any]] = {
    "unit": lambda encoder: encoder.encode(TEXTS, normalize_embeddings=True),
    "short": lambda encoder: encoder.encode(TEXTS, truncate_dim=5),
}
"""What the vectors must be that a program got in a way whose name begins so; others are those of `encode`."""

DIVIDED = ("huggingface", "unit")
"""Ways of getting vectors on whose routes they are divided by their norm."""


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the clients' environment; WHITEN_SERVE_CLIENTS names one that is there already."""
    if given := os.environ.get("WHITEN_SERVE_CLIENTS"):
        return Path(given)
    return installed_environment("serving-clients", HERE / "requirements.txt")


@pytest.fixture(scope="session")
def bundle(golden: Path) -> Path:
    """A bundle in float32 whose vectors are not divided by their norm."""
    return golden / "bundle-v1"


@pytest.fixture(scope="session")
def int8(golden: Path) -> Path:
    """A bundle in int8 whose vectors are divided by their norm."""
    return golden / "bundle-v1-int8"


@contextmanager
def serving(*bundles: Path, max_wait: str = "10s") -> Iterator[str]:
    """Run `whiten serve` on bundles, the first one as "small", and yield its address."""
    named = [f"{name}={path}" for name, path in zip(("small", "other"), bundles, strict=False)]
    with RunningServer(*named, "--max-wait", max_wait) as server:
        yield f"http://127.0.0.1:{server.address[1]}"


@pytest.fixture(scope="session")
def url(bundle: Path) -> Iterator[str]:
    with serving(bundle) as address:
        yield address


@pytest.fixture(scope="session")
def url_of_two(bundle: Path, int8: Path) -> Iterator[str]:
    with serving(int8, bundle) as address:
        yield address


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    """Return a function that runs with_NAME.py, and returns the arrays that it saved."""

    def program(name: str, url: str, *arguments: str, **variables: str) -> dict[str, Any]:
        texts, out = tmp_path / "texts.json", tmp_path / "out.npz"
        texts.write_text(json.dumps(TEXTS), "utf-8")
        settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        command = [str(python), str(HERE / f"with_{name}.py"), url, str(texts), str(out), *arguments]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | settings | variables
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        print(f"--- {name}\n{done.stdout}", end="")
        with np.load(out) as arrays:
            return dict(arrays)

    return program


def check(arrays: dict[str, Any], bundle: Path, number: int) -> None:
    """Check that vectors are those of the encoder, and that there are so many arrays of them."""
    assert len(arrays) == number
    with Encoder(bundle) as encoder:
        bound = 1e-6 if encoder.manifest.precision == "int8" else 1e-5  # that whitening multiplies rounding by 100
        for name, got in arrays.items():
            kind = "unit" if name.startswith(DIVIDED) else name
            want = WANTED.get(kind, lambda opened: opened.encode(TEXTS))(encoder)
            assert got.shape == want.shape
            distance = np.abs(got - want).max(axis=1) / np.linalg.norm(want, axis=1)
            assert distance.max() <= bound, (name, distance.max())


@pytest.mark.parametrize(
    ("client", "number"),
    [("langchain openai", 2), ("langchain ollama", 2), ("llama_index", 2), ("litellm", 3), ("huggingface_hub", 4)],
)
def test_a_client_gets_the_vectors_of_the_encoder(client: str, number: int, run: Run, url: str, bundle: Path) -> None:
    name, *way = client.split()
    check(run(name, url, *way), bundle, number)


@pytest.mark.parametrize(("client", "number"), [("openai", 5), ("ollama", 3)])
def test_a_client_chooses_one_of_two_models(client: str, number: int, run: Run, url_of_two: str, int8: Path) -> None:
    check(run(client, url_of_two), int8, number)


def test_openai_asks_again_when_it_is_told_to(run: Run, int8: Path) -> None:
    with serving(int8, max_wait="1ms") as url:
        check(run("openai_retries", url), int8, 1)


@pytest.fixture(scope="session")
def tiktoken_folder(python: Path) -> Path:
    """A copy of tiktoken's cache, which litellm has in its package."""
    found = "import importlib.util; print(importlib.util.find_spec('litellm').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", found], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip()) / "litellm_core_utils" / "tokenizers"
    assert (folder / CL100K).is_file()
    return folder


def test_token_ids_of_langchain_are_refused_with_the_remedy(run: Run, url: str, tiktoken_folder: Path) -> None:
    run("langchain", url, "refused", TIKTOKEN_CACHE_DIR=str(tiktoken_folder))
