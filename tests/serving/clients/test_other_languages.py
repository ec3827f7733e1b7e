"""Test the server with clients of JavaScript by their default settings, and with Java's own client."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.corpus import sentences
from support.server import RunningServer
from support.vectors import assert_near
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

HERE = Path(__file__).parent
TEXTS = [*sentences(40), "a", "  spaces  ", "Ünïcödé 日本 👩‍👧 русский", "half of a smile: \ud83d"]
LONG = ["short", "long " * 400]
OPENAI = "maximum context length is 48 tokens, but input[1] has 1202 tokens"
OLLAMA = "input length exceeds the context length of 48 tokens: input[1] has 1202 tokens"


@dataclass(frozen=True, kw_only=True)
class Client:
    """What a client of with_node.mjs does by its default settings.

    Attributes:
        error: Its error for a text that is too long.
        words: Words of the server in this error.
        attempts: Requests with a text that is too long.
        cuts: Whether the text is cut and answered, where the server does not refuse it.
        overload: Its error for a request that was refused with 429; none if it sends the request again.
        requests: Requests for `texts` texts.
        texts: Texts of a batch.
        unit: Whether the vectors are divided by their norm.
    """

    error: str
    words: str = OPENAI
    attempts: int = 1
    cuts: bool = True
    overload: str | None = None
    requests: int = 1
    texts: int = len(TEXTS)
    unit: bool = False


LANGCHAIN_OLLAMA = Client(error="ResponseError", words=OLLAMA, attempts=7, cuts=False, unit=True)
"""It sends `truncate: false`, and repeats any request that fails six times, in 63 to 126 s: it looks for a status where
the client of Ollama has none."""

CLIENTS = {
    "openai": Client(error="BadRequestError"),
    "azure": Client(error="BadRequestError"),
    "ollama": Client(error="ResponseError", words=OLLAMA, overload="ResponseError", unit=True),
    "ollama_embeddings": Client(
        error="ResponseError",
        words=OLLAMA.replace("input[1]", "prompt[0]"),
        attempts=len(LONG),
        overload="ResponseError",
        requests=len(TEXTS),
    ),
    "langchain_openai": Client(error="ContextOverflowError", requests=3, texts=1100),
    "langchain_ollama": LANGCHAIN_OLLAMA,
    "langchain_ollama_options": LANGCHAIN_OLLAMA,
    "vercel_openai": Client(error="AI_APICallError", requests=2, texts=2100),
    "vercel_compatible": Client(error="AI_APICallError", requests=2, texts=2100),
}

of_each_client = pytest.mark.parametrize("name", CLIENTS)

Texts = dict[str, list[str]]
Outcomes = dict[str, dict[str, Any]]
Embed = Callable[..., Outcomes]


def batch(client: Client) -> list[str]:
    """Return the texts of a batch, which differ, none longer than the bundle takes."""
    return [f"{index} {TEXTS[index % len(TEXTS)][:24]}" for index in range(client.texts)]


@pytest.fixture(scope="module")
def embed(golden: Path, tmp_path_factory: pytest.TempPathFactory, node_modules: Path) -> Embed:
    """Return a function that starts a server, and returns the outcome of each client's texts."""

    def run(texts: Texts, *way: str, options: tuple[object, ...] = ()) -> Outcomes:
        folder = tmp_path_factory.mktemp("node")
        (folder / "node_modules").symlink_to(node_modules)
        program, inputs, out = (folder / name for name in ("with_node.mjs", "texts.json", "out.json"))
        program.write_bytes((HERE / "with_node.mjs").read_bytes())
        inputs.write_text(json.dumps(texts), "utf-8")
        with RunningServer(f"small={golden / 'bundle-v1'}", *options) as server:
            command = ["node", program, f"http://127.0.0.1:{server.address[1]}", inputs, out, *way]
            environment = {"PATH": os.environ["PATH"]}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        outcomes: Outcomes = json.loads(out.read_bytes())
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome['statuses'][-7:]} {outcome.get('error', '')} {outcome.get('message', '')}")
        return outcomes

    return run


@pytest.fixture(scope="module")
def single(embed: Embed) -> Outcomes:
    return embed(dict.fromkeys(CLIENTS, TEXTS[:1]))


@pytest.fixture(scope="module")
def batches(embed: Embed) -> Outcomes:
    return embed({name: batch(client) for name, client in CLIENTS.items()})


@pytest.fixture(scope="module")
def cuts(embed: Embed) -> Outcomes:
    return embed(dict.fromkeys(CLIENTS, LONG), "hurry")


@pytest.fixture(scope="module")
def refusals(embed: Embed, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    settings = tmp_path_factory.mktemp("settings") / "serve.toml"
    settings.write_text('on-long = "error"\n', "utf-8")
    return embed(dict.fromkeys(CLIENTS, LONG), "hurry", options=("--config", settings))


@pytest.fixture(scope="module")
def overload(embed: Embed) -> Outcomes:
    return embed(dict.fromkeys(CLIENTS, TEXTS[:1]), "overload", options=("--max-wait", "1ms"))


def check_vectors(name: str, outcomes: Outcomes, texts: list[str], golden: Path) -> None:
    """Check that a client got the vectors of the encoder."""
    assert "error" not in outcomes[name], outcomes[name]
    with Encoder(golden / "bundle-v1") as encoder:
        want = encoder.encode(texts, normalize_embeddings=CLIENTS[name].unit)
    assert_near(outcomes[name]["vectors"], want, 1e-5)


def check_refusal(name: str, outcomes: Outcomes) -> None:
    """Check that a client shows its own error with the words of the server, after the attempts that it makes."""
    outcome, client = outcomes[name], CLIENTS[name]
    assert outcome["error"] == client.error
    assert client.words in outcome["message"]
    assert outcome["statuses"][-1] == 400
    assert len(outcome["statuses"]) == client.attempts


@of_each_client
def test_one_text(name: str, single: Outcomes, golden: Path) -> None:
    check_vectors(name, single, TEXTS[:1], golden)
    assert single[name]["statuses"] == [200]


@of_each_client
def test_a_batch(name: str, batches: Outcomes, golden: Path) -> None:
    check_vectors(name, batches, batch(CLIENTS[name]), golden)
    assert batches[name]["statuses"] == [200] * CLIENTS[name].requests


@of_each_client
def test_a_long_text_is_cut_unless_the_client_says_otherwise(name: str, cuts: Outcomes, golden: Path) -> None:
    if CLIENTS[name].cuts:
        check_vectors(name, cuts, LONG, golden)
    else:
        check_refusal(name, cuts)


@of_each_client
def test_a_long_text_that_the_server_refuses_is_an_error_of_the_client(name: str, refusals: Outcomes) -> None:
    check_refusal(name, refusals)


@of_each_client
def test_a_client_in_an_overload_asks_again_or_says_so(name: str, overload: Outcomes, golden: Path) -> None:
    outcome = overload[name]
    if CLIENTS[name].overload:
        assert outcome["error"] == CLIENTS[name].overload
        assert "too many requests" in outcome["message"]
        assert outcome["statuses"] == [429]
    else:
        check_vectors(name, overload, TEXTS[:1], golden)
        assert outcome["statuses"] == [429, 200]


@pytest.mark.parametrize("count", [1, len(TEXTS)])
def test_javas_own_client(count: int, golden: Path, tmp_path: Path) -> None:
    """It offers h2c with its first request, as Spring AI and langchain4j do, which are built on it."""
    if shutil.which("javac") is None:
        pytest.skip("there is no javac here (Debian: default-jdk-headless)")
    subprocess.run(["javac", "-d", tmp_path, HERE / "Client.java"], check=True, timeout=300)
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"input": TEXTS[:count]}), "utf-8")
    with RunningServer(f"small={golden / 'bundle-v1'}") as server:
        url = f"http://127.0.0.1:{server.address[1]}/v1/embeddings"
        command = ["java", "-cp", str(tmp_path), "Client", url, str(body)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 12
    with Encoder(golden / "bundle-v1") as encoder:
        want = encoder.encode(TEXTS[:count])
    for answer in answers:
        assert_near([row["embedding"] for row in answer["data"]], want, 1e-5)
