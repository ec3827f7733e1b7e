"""Test the server with the clients of Python, unmodified, by their default settings: vectors, and what errors say."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
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

SETTINGS = {
    "ANONYMIZED_TELEMETRY": "False",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "127.0.0.1",
}
"""Variables by which clients call nobody else."""


@dataclass(frozen=True)
class Way:
    """What a way of getting vectors does where the server refuses a request.

    Attributes:
        error: Its error for a text that is too long.
        words: Words of the server in this error.
        overload: Its error for a request that was refused with 429; none if it sends the request again.
        code: Code of the error for a text that is too long.
    """

    error: str
    words: str
    overload: str | None = None
    code: str | None = None


OPENAI = Way("BadRequestError", "maximum context length is 48 tokens, but input[", code="context_length_exceeded")
OLLAMA = Way("ResponseError", "input length exceeds the context length of 48 tokens: input[", "ResponseError")
TEI = Way("HfHubHTTPError", "`inputs` must have less than 48 tokens, but inputs", "HfHubHTTPError")
LITELLM = replace(OPENAI, error="ContextWindowExceededError", code=None)

PROGRAMS: dict[str, dict[str, Way]] = {
    "openai": dict.fromkeys(("sync", "floats", "short", "azure", "async", "at_once"), OPENAI),
    "ollama": {
        **dict.fromkeys(("unit", "unit_async"), OLLAMA),
        "plain": replace(OLLAMA, words=OLLAMA.words.replace("input[", "prompt[")),
    },
    "litellm": {
        **dict.fromkeys(("openai", "floats"), LITELLM),
        "hosted_vllm": replace(LITELLM, overload="RateLimitError"),
        # For these two providers, LiteLLM looks for no words that the server of their kind says.
        "unit_ollama": replace(OLLAMA, error="BadRequestError", overload="RateLimitError"),
        "huggingface": replace(TEI, error="APIError", overload="RateLimitError"),
    },
    "langchain": {
        **dict.fromkeys(("documents", "queries", "many"), OPENAI),
        **dict.fromkeys(("unit_documents", "unit_queries"), OLLAMA),
    },
    "llama_index": {
        **dict.fromkeys(("documents", "queries"), OPENAI),
        **dict.fromkeys(("unit_documents", "unit_queries"), OLLAMA),
    },
    "haystack": {
        "queries": OPENAI,
        "documents": replace(OPENAI, error="NoEmbeddingError", code=None),
        **dict.fromkeys(("unit_queries", "unit_documents"), OLLAMA),
    },
    "stores": {"chroma": OPENAI, "unit_chroma": OLLAMA, "qdrant": OPENAI, "unit_qdrant": OPENAI},
    "huggingface_hub": dict.fromkeys(("unit", "unit_embed", "plain", "unit_at_once"), TEI),
}
"""Ways of the programs with_NAME.py."""

TWO_MODELS = ("openai", "ollama")
"""Programs that choose one of two models, "small", which is that in int8."""

ALL = [(program, way) for program, ways in PROGRAMS.items() for way in ways]
of_each_way = pytest.mark.parametrize(("program", "way"), ALL, ids=[" ".join(pair) for pair in ALL])

Run = Callable[[str], dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the clients' environment; WHITEN_SERVE_CLIENTS names one that is there already."""
    if path := os.environ.get("WHITEN_SERVE_CLIENTS"):
        return Path(path)
    return installed_environment("serving-clients", HERE / "requirements.txt")


@pytest.fixture(scope="session")
def bundle(golden: Path) -> Path:
    """A bundle in float32 whose vectors are not divided by their norm."""
    return golden / "bundle-v1"


@pytest.fixture(scope="session")
def int8(golden: Path) -> Path:
    """A bundle in int8 whose vectors are divided by their norm."""
    return golden / "bundle-v1-int8"


@pytest.fixture(scope="session")
def tiktoken_folder(python: Path) -> Path:
    """A copy of tiktoken's cache, which litellm has in its package."""
    code = "import importlib.util; print(importlib.util.find_spec('litellm').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip()) / "litellm_core_utils" / "tokenizers"
    assert (folder / CL100K).is_file()
    return folder


@pytest.fixture(scope="module")
def run(
    python: Path, bundle: Path, int8: Path, tiktoken_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    """Return a function that runs with_NAME.py once, and returns the outcomes of its ways."""
    folder = tmp_path_factory.mktemp("clients")
    texts, settings = folder / "texts.json", folder / "serve.toml"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    settings.write_text('on-long = "error"\n', "utf-8")
    small, variables = f"small={bundle}", SETTINGS | {"TIKTOKEN_CACHE_DIR": str(tiktoken_folder)}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    with ExitStack() as stack:

        def serve(*arguments: str) -> str:
            host, port = stack.enter_context(RunningServer(*arguments)).address
            return f"http://{host}:{port}"

        one, two = serve(small), serve(f"small={int8}", f"other={bundle}")
        others = serve(small, "--config", str(settings)), serve(small, "--max-wait", "1ms")

        @cache
        def program(name: str) -> dict[str, dict[str, Any]]:
            out = folder / f"{name}.json"
            command = [python, HERE / f"with_{name}.py", two if name in TWO_MODELS else one, *others, texts, out]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            print(f"--- {name}\n{done.stdout}", end="")
            outcomes: dict[str, dict[str, Any]] = json.loads(out.read_bytes())
            assert outcomes.keys() == PROGRAMS[name].keys()
            return outcomes

        yield program


def check(outcome: dict[str, Any], way: str, bundle: Path) -> None:
    """Check that a way got the vectors of the encoder for the first texts, as many as it has vectors."""
    assert "error" not in outcome, outcome
    kind = "unit" if way.startswith(DIVIDED) else way
    with Encoder(bundle) as encoder:
        want = WANTED.get(kind, lambda opened: opened.encode(TEXTS))(encoder)
        bound = 1e-6 if encoder.manifest.precision == "int8" else 1e-5  # that whitening multiplies rounding by 100
    rows = np.array(outcome["vectors"])
    want = want[: len(rows)]
    assert rows.shape == want.shape
    distance = np.abs(rows - want).max(axis=1) / np.linalg.norm(want, axis=1)
    assert distance.max() <= bound, distance.max()


@of_each_way
@pytest.mark.parametrize(("case", "number"), [("one", 1), ("batch", len(TEXTS))])
def test_a_client_gets_the_vectors_of_the_encoder(
    program: str, way: str, case: str, number: int, run: Run, bundle: Path, int8: Path
) -> None:
    outcome = run(program)[way][case]
    check(outcome, way, int8 if program in TWO_MODELS else bundle)
    assert len(outcome["vectors"]) == number
    assert set(outcome["statuses"]) == {200}


@of_each_way
def test_a_text_that_is_too_long_is_an_error_of_the_client(program: str, way: str, run: Run) -> None:
    outcome, client = run(program)[way]["refusal"], PROGRAMS[program][way]
    assert outcome["error"] == client.error, outcome
    assert client.words in outcome["message"]
    assert "has 1202 tokens" in outcome["message"]
    if client.code:
        assert outcome["code"] == client.code
    assert sum(status != 200 for status in outcome["statuses"]) == 1  # it is not sent again


@of_each_way
def test_a_client_asks_again_in_an_overload_or_says_so(program: str, way: str, run: Run, bundle: Path) -> None:
    outcome, client = run(program)[way]["overload"], PROGRAMS[program][way]
    assert 429 in outcome["statuses"]
    if client.overload:
        assert outcome["error"] == client.overload, outcome
        assert "too many requests" in outcome["message"]
    else:
        check(outcome, way, bundle)
        assert len(outcome["vectors"]) == len(TEXTS)
        assert outcome["statuses"][-1] == 200
