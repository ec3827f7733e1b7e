"""Guarantees of serving: fairness among clients, probes, what is read without a key, and what clients are told."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.asgi import FIELDS, ask, asked, until
from support.bundles import add_token_without_row, copy_bundle
from support.conformance import Row, check, check_vectors, read_table, send
from support.loads import (
    NOISY,
    Post,
    answered_before,
    answered_in_order,
    cancel,
    keys_of_clients,
    leave,
    post,
    with_others_staying,
)
from support.once import once
from support.server import RunningServer
from support.timed import slow, text_of, write_broken_bundle, write_timed_bundle
from whiten import AsyncEncoder, Encoder

LONGEST = 8192
"""Tokens of the longest text of the bundle."""


@pytest.fixture(scope="module")
def timed(timed_bundle: Path) -> Iterator[AsyncEncoder]:
    encoder = AsyncEncoder(timed_bundle, lanes=1)
    yield encoder
    asyncio.run(encoder.close(wait=False))


def full_batch(encoder: AsyncEncoder) -> int:
    return int(asked(encoder.asgi_app("timed"), "GET", "/info").json()["max_batch_tokens"])


# F1: clients with work waiting get like numbers of tokens.


def requests_of(lengths: list[int], full: int) -> list[Post]:
    """Return requests of each client, forty full batches or four of the longest texts at least.

    A request has a full batch at most, or a single text: of one that is computed in part, nothing is seen.
    """
    enough, requests = max(40 * full, 4 * max(lengths)), []
    for client, tokens in enumerate(lengths):
        texts = max(1, full // tokens)
        for number in range(-(-enough // (tokens * texts))):
            own = [text_of(tokens, number * texts + place) for place in range(texts)]
            requests.append(Post(own, client, tokens * texts))
    return requests


def check_shares(encoder: AsyncEncoder, lengths: list[int]) -> None:
    """Check that no client had more than twice the tokens of another one when it was the first to have all of its own.

    A text is not divided, and the batch that runs is not seen.
    """
    full = full_batch(encoder)
    requests = requests_of(lengths, full)
    left, got = Counter(request.client for request in requests), Counter[int]()
    for request in asyncio.run(answered_in_order(encoder, requests)):
        assert request.answer is not None
        assert request.answer.status == 200, request.answer.body
        got[request.client] += request.tokens
        left[request.client] -= 1
        if not left[request.client]:
            break
    most = 2 * (min(got[client] for client in left) + full) + max(full, *lengths)
    assert got[request.client] <= most, dict(got)


@pytest.mark.parametrize(
    "lengths",
    [
        [250, 25],
        [25, 26, 200, 12],
        [8192, 25],
        [25, 2048, 700],
    ],
    ids=str,
)
def test_f1_no_client_gets_more_than_twice_the_tokens_of_another(timed: AsyncEncoder, lengths: list[int]) -> None:
    check_shares(timed, lengths)


lengths = st.integers(2, 12).flatmap(lambda power: st.integers(2**power, 2 ** (power + 1)))
"""Tokens of texts: as many short as long ones."""


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(lengths, min_size=2, max_size=6))
@example([1024, 25])
def test_f1_whatever_the_lengths_of_their_texts(timed: AsyncEncoder, lengths: list[int]) -> None:
    check_shares(timed, lengths)


# F2: what a client sends has no other one refused or delayed. F4: probes answer under any load.


heads = st.lists(st.integers(1, 32_000_000), min_size=1, max_size=40)
"""Declared lengths of bodies."""


@settings(max_examples=20)
@given(heads, st.integers(1, 100), st.integers(3, 600))
@example([31_000_000, 31_000_000, 23_300_000], 100, 500)
def test_f2_heads_and_a_byte_have_no_other_client_refused(
    timed: AsyncEncoder, declared: list[int], texts: int, tokens: int
) -> None:
    app = timed.asgi_app("timed", api_keys=keys_of_clients(), log="off")
    request = Post([text_of(tokens, number) for number in range(texts)], 1)
    answer = asyncio.run(with_others_staying(app, [(length, b"{") for length in declared], request))
    assert answer is not None
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(("bodies", "length"), [(2, 330_000), (7, 95_000)])
def test_f2_bytes_have_no_other_client_refused(timed: AsyncEncoder, bodies: int, length: int) -> None:
    app = timed.asgi_app("timed", api_keys=keys_of_clients(), max_in_flight=2_000_000, log="off")
    content = b'{"inputs": "'.ljust(length - 1, b"a")  # a byte is missing
    request = Post([text_of(100, number) for number in range(400)], 1)
    answer = asyncio.run(with_others_staying(app, [(length, content)] * bodies, request))
    assert answer is not None
    assert answer.status == 200, answer.body


@pytest.mark.slow
def test_f2_connections_have_no_other_client_refused(timed: AsyncEncoder) -> None:
    app = timed.asgi_app("timed", api_keys=keys_of_clients(), log="off")
    answer = asyncio.run(with_others_staying(app, [(9, b"{")] * 2048, Post(["a"], 1)))
    assert answer is not None
    assert answer.status == 200, answer.body


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        *(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path for path in (b"/openapi.json", b"/", b"/nothing")),
        *(b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"b" * 997, b"GET /" + b"b" * 1000),
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n{",
    ],
)
def test_f2_connections_take_little_memory(golden: Path, sent: bytes) -> None:
    """Each of 30 clients sends as much of it as is taken, up to 4 MB, and reads nothing."""
    with RunningServer(golden / "bundle-v1", "--no-verify", "--log", "off") as server, ExitStack() as stack:
        status = Path(f"/proc/{server.process.pid}/status")
        before = memory(status)
        stack.callback(lambda: [client.close() for client in clients])
        clients = [socket.socket() for _ in range(30)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.address)
            client.settimeout(0.2)
            with suppress(OSError):  # it is not read any more, or has an error as its answer
                client.sendall(sent * (4_000_000 // len(sent)))
        assert server.call("GET", "/ready").status_code == 200
        assert memory(status) - before < 64_000_000


def memory(status: Path) -> int:
    """Return the resident bytes of a process at their peak."""
    (line,) = [line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


@pytest.mark.slow
def test_f2_tokens_have_no_other_client_refused(timed: AsyncEncoder) -> None:
    """A client has as many tokens waiting as may wait, of which the last request finds no room."""

    async def run() -> None:
        app, answered = timed.asgi_app("timed", api_keys=keys_of_clients(), timeout=3600.0, log="off"), list[Post]()
        gates = [asyncio.create_task(post(app, Post([slow(1448)], 40), [])) for _ in range(2)]
        tasks = []
        while not answered:
            request = Post([text_of(LONGEST, len(tasks) * 16 + place) for place in range(16)])
            tasks.append(asyncio.create_task(post(app, request, answered)))
            await until(lambda: bool(answered) or timed.stats().queue_requests >= len(tasks))
            assert not any(gate.done() for gate in gates), "the gate is too short"
        other = Post([text_of(25, number) for number in range(100)], 1)
        last = asyncio.create_task(post(app, other, []))
        await until(lambda: other.answer is not None or timed.stats().queue_requests > len(tasks) - len(answered))
        refused = other.answer
        await cancel(*gates, *tasks, last)
        assert refused is None, refused.body

    asyncio.run(run())


@pytest.fixture(scope="module")
def short_texts(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEncoder]:
    """An encoder of a bundle that reads 16 tokens of a text."""
    path = once(tmp_path_factory, "timed-16", lambda path: write_timed_bundle(golden / "bundle-v1", path, 16))
    encoder = AsyncEncoder(path)
    yield encoder
    asyncio.run(encoder.close(wait=False))


@pytest.mark.parametrize("letters", [10, 4200])
def test_f2_texts_that_take_long_to_tokenise_delay_no_other_client(short_texts: AsyncEncoder, letters: int) -> None:
    async def run() -> int:
        app = short_texts.asgi_app("timed", api_keys=keys_of_clients(), max_in_flight=2**40, log="off")
        body = {"inputs": [text_of(letters // 2)]}
        return await answered_before(app, ask(app, "POST", "/embed", body, {"x-api-key": "key-1"}))

    count = asyncio.run(run())
    assert count <= NOISY / 2


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics"])
def test_f4_probes_do_not_wait_behind_work(short_texts: AsyncEncoder, path: str) -> None:
    async def run() -> int:
        app = short_texts.asgi_app("timed", api_keys=keys_of_clients(), max_in_flight=2**40, log="off")
        return await answered_before(app, ask(app, "GET", path, headers={"x-api-key": "key-1"}))

    count = asyncio.run(run())
    assert count <= NOISY / 2


# F3: a single short text waits for two full batches of each client, and for one batch of each other model.


def check_wait(encoder: AsyncEncoder, lengths: list[int], batches: int) -> None:
    """Check the tokens that are computed before a short text, of clients that have more work than that.

    Each has requests of several full batches, or of as many texts where one has more tokens than a batch.
    """
    full = full_batch(encoder)
    requests = []
    for client, tokens in enumerate(lengths):
        texts = max(1, full // tokens) * batches
        for number in range(-(-4 // batches)):
            own = [text_of(tokens, number * texts + place) for place in range(texts)]
            requests.append(Post(own, client, tokens * texts))
    short = Post([text_of(5)], len(lengths))
    answered = asyncio.run(answered_in_order(encoder, [*requests, short]))
    assert {one.answer.status for one in answered if one.answer} == {200}
    before = sum(one.tokens for one in answered[: answered.index(short)])
    assert before <= sum(2 * max(full, tokens) for tokens in lengths)


@pytest.mark.parametrize("batches", [1, 6])
@pytest.mark.parametrize("lengths", [[20], [128, 300, 1000, 5]], ids=str)
def test_f3_a_short_text_waits_for_two_batches_of_each_client(
    timed: AsyncEncoder, lengths: list[int], batches: int
) -> None:
    check_wait(timed, lengths, batches)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(lengths, min_size=1, max_size=12), st.integers(1, 6))
@example([64] * 40, 1)
def test_f3_whatever_the_clients(timed: AsyncEncoder, lengths: list[int], batches: int) -> None:
    check_wait(timed, lengths, batches)


@pytest.mark.parametrize("lanes", [1, 2])
def test_f3_a_short_text_waits_for_one_batch_of_another_model(
    timed: AsyncEncoder, timed_bundle: Path, lanes: int
) -> None:
    full = full_batch(timed)

    async def run() -> None:
        slow_model = AsyncEncoder(timed_bundle, lanes=lanes)
        fast_model = AsyncEncoder(timed_bundle, shared_with=slow_model)
        ended = 0

        async def bulk(number: int) -> None:
            nonlocal ended
            await slow_model.encode(f"{slow(256)} {text_of(full, number)}")
            ended += 1

        tasks = [asyncio.create_task(bulk(number)) for number in range(40)]
        await until(lambda: ended > 0)
        waited = []
        for _ in range(5):
            before = ended
            await fast_model.encode("a short text")
            waited.append(ended - before)
        await cancel(*tasks)
        await fast_model.close()
        await slow_model.close()
        assert max(waited) <= lanes, waited

    asyncio.run(run())


# F5: a model that answers nothing is not ready; a long text is no reason to restart. F6: work for nobody stops.


async def statuses(app: Any, *paths: str) -> list[int]:
    return [(await ask(app, "GET", path)).status for path in paths]


def test_f5_a_model_that_answers_nothing_is_not_ready(golden: Path, tmp_path: Path) -> None:
    write_broken_bundle(golden / "bundle-v1", tmp_path / "broken")

    async def run() -> None:
        async with AsyncEncoder(tmp_path / "broken") as encoder:
            app = encoder.asgi_app("broken", log="off")
            for number in range(30):
                assert (await ask(app, "POST", "/v1/embeddings", {"input": text_of(9, number)})).status >= 400
            assert (await statuses(app, "/ready", "/live")) == [503, 200]

    asyncio.run(run())


@pytest.mark.parametrize("texts", [1, 5])
def test_f5_a_text_that_fails_leaves_the_model_ready(golden: Path, tmp_path: Path, texts: int) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    add_token_without_row(bundle, "[failing]")

    async def run() -> None:
        async with AsyncEncoder(bundle) as encoder:
            app = encoder.asgi_app("tiny", log="off")
            for number in range(30):
                body = {"input": [text_of(9, number)] * (texts - 1) + ["a [failing] text"]}
                assert (await ask(app, "POST", "/v1/embeddings", body)).status == 400
            assert await statuses(app, "/ready", "/live") == [200, 200]
            assert (await ask(app, "POST", "/v1/embeddings", {"input": "a text"})).status == 200

    asyncio.run(run())


@pytest.mark.slow
def test_f5_a_long_text_is_no_reason_to_restart(timed_bundle: Path) -> None:
    """It is computed for a minute and more, if nobody ends it."""
    with RunningServer(f"timed={timed_bundle}", "--no-verify", "--timeout", "1s", "--log", "off") as server:
        assert server.embed(f"{slow(4096)} {text_of(1500)}").status_code == 504
        end, found = time.monotonic() + 65, set()
        while time.monotonic() < end and found <= {200}:
            found |= {server.call("GET", path).status_code for path in ("/live", "/ready")}
            time.sleep(0.5)
        assert found == {200}


@pytest.mark.parametrize(
    "way", ["cancelled", *(pytest.param(way, marks=pytest.mark.slow) for way in ("late", "disconnected"))]
)
def test_f6_a_batch_for_nobody_ends(timed_bundle: Path, way: str) -> None:
    """Another encoder computes a text of a third of its length: it ends later than a short text behind that batch."""
    sizes = (724, 512, 362) if way == "cancelled" else (1448, 1024, 724)
    long, third, short = (f"{slow(size)} {text_of(900)}" for size in sizes)

    async def run() -> bool:
        clock, encoder = AsyncEncoder(timed_bundle, lanes=1), AsyncEncoder(timed_bundle, lanes=1)
        app, gone = encoder.asgi_app("timed", log="off"), asyncio.Event()
        task: asyncio.Task[Any] = asyncio.create_task(
            encoder.encode(long)
            if way == "cancelled"
            else ask(app, "POST", "/embed", {"inputs": long}, {"x-timeout-ms": "500"})
            if way == "late"
            else leave(app, {"inputs": long}, gone)
        )
        await until(lambda: encoder.stats().lanes_busy == 1)
        gone.set()
        await (cancel(task) if way == "cancelled" else task)
        measured = asyncio.create_task(clock.encode(third))
        await until(lambda: clock.stats().lanes_busy == 1)
        await encoder.encode(short)
        first = not measured.done()
        await measured
        await encoder.close(wait=False)
        await clock.close()
        return first

    assert asyncio.run(run())


@pytest.mark.parametrize("way", ["cancelled", "late", pytest.param("disconnected", marks=pytest.mark.slow)])
def test_f6_texts_that_wait_for_nobody_are_not_computed(timed_bundle: Path, way: str) -> None:
    async def run() -> int:
        async with AsyncEncoder(timed_bundle, lanes=1) as encoder:
            app, gone = encoder.asgi_app("timed", log="off"), asyncio.Event()
            size = 1024 if way == "disconnected" else 512
            gate = asyncio.create_task(encoder.encode([f"{slow(size)} {text_of(600, end)}" for end in range(2)]))
            await until(lambda: encoder.stats().lanes_busy == 1)
            calls: list[Coroutine[Any, Any, Any]] = []
            for number in range(20):
                body = {"inputs": text_of(20, number)}
                if way == "cancelled":
                    calls.append(encoder.encode(body["inputs"]))
                elif way == "late":
                    calls.append(ask(app, "POST", "/embed", body, {"x-timeout-ms": "20"}))
                else:
                    calls.append(leave(app, body, gone))
            tasks = [asyncio.create_task(call) for call in calls]
            await until(lambda: encoder.stats().queue_requests >= 20 or way == "late")
            gone.set()
            await (cancel(*tasks) if way == "cancelled" else asyncio.gather(*tasks))
            await gate
            await encoder.encode("behind all of them")
            return encoder.stats().counted.texts

    assert asyncio.run(run()) == 3


# F7: nothing about tenants is readable without a key.

OPEN = ("/live", "/ready", "/health", "/ping")
"""Probes, which say nothing but whether the server can be asked."""

SECRETS = {"sk-2357": "acme-corp", "sk-1113": "quiet.example"}

GETS = (
    *("/info", "/v1/models", "/models", "/v1/models/own-model", "/openai/v1/models", "/models/own-model/info"),
    *("/api/tags", "/api/ps", "/api/version", "/nothing", "/v1/embeddings", "/models/other/info"),
)


@pytest.mark.parametrize("path", [*OPEN, *GETS, "/metrics", "/openapi.json"])
@pytest.mark.parametrize("key", [None, "sk-2358"])
def test_f7_nothing_is_readable_without_a_key(tiny: Encoder, path: str, key: str | None) -> None:
    app = AsyncEncoder(tiny).asgi_app("own-model", api_keys=SECRETS, log="off")
    for own in SECRETS:  # both have been here
        assert asked(app, "POST", "/embed", {"inputs": "a"}, headers={"x-api-key": own}).status == 200
    answer = asked(app, "GET", path, headers={} if key is None else {"x-api-key": key})
    shown = answer.body.decode() + str(answer.headers)
    assert not any(word in shown for word in ("acme", "quiet", "own-model", *SECRETS)), shown
    assert answer.status in ((200,) if path in OPEN else (401, 404, 405))


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", *GETS[:3]])
def test_f7_a_key_opens(tiny: Encoder, path: str) -> None:
    app = AsyncEncoder(tiny).asgi_app("own-model", api_keys=SECRETS, log="off")
    assert asked(app, "GET", path, headers={"authorization": "Bearer sk-2357"}).status == 200


@pytest.fixture(scope="module")
def two_models(golden: Path) -> Iterator[RunningServer]:
    """A server of two models on this machine, without keys."""
    places = (f"{name}={golden / 'bundle-v1'}" for name in ("one", "org/two"))
    with RunningServer(*places, "--no-verify", "--log", "off", "--drain", "0") as server:
        yield server


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "127.0.0.1", "[::1]", "LOCALHOST"),
        *("evil.example", "127.0.0.1.evil.example", "localhost.a"),
    ],
)
def test_f7_a_server_of_this_machine_answers_to_its_own_names_only(two_models: RunningServer, host: str) -> None:
    own = host.lower().strip("[]") in ("localhost", "127.0.0.1", "::1")
    for name in (host, f"{host}:{two_models.address[1]}"):
        for path in ("/info", "/metrics", "/v1/models"):
            assert two_models.call("GET", path, headers={"host": name}).is_success == own
        answer = two_models.call("POST", "/v1/embeddings", {"model": "one", "input": "a"}, {"host": name})
        assert answer.is_success == own


# F8: a field that changes no vector is taken; one that would change a vector is obeyed, or refused by name.
# F9: clients are told what their code acts on.

TEXTS = ["the cat and the dog", "a plane"]
TABLE = Path(__file__).parent / "requests.jsonl"
"""Requests and their answers, as `support.conformance` describes them. In rows of F8, `body` has fields besides the
texts, and the answer has vectors (where `encode` is null: of no arguments), or is a refusal with the name `or_refused`.
"""


@pytest.fixture(scope="module")
def prompted(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """An encoder that has prompts."""
    prompts = {"query": "query: ", "document": "passage: ", "clustering": "cluster: "}
    with Encoder(copy_bundle(golden / "bundle-v1", tmp_path_factory.mktemp("prompted"), prompts=prompts)) as encoder:
        yield encoder


@pytest.mark.parametrize("row", read_table(TABLE, guarantee="f8"))
def test_f8_fields_are_taken_obeyed_or_refused_by_name(prompted: Encoder, row: Row) -> None:
    asked_for = {"texts": TEXTS, "encode": {}, **row, "body": {FIELDS[row["path"]]: TEXTS} | row["body"]}
    answer = send(AsyncEncoder(prompted).asgi_app("tiny", log="off"), asked_for)
    if "or_refused" in row and answer.status != 200:
        assert 400 <= answer.status < 500
        assert row["or_refused"] in answer.body.decode()
    else:
        assert asked_for["encode"] is not None, "a field that cannot be obeyed was taken"
        check_vectors(asked_for, answer, prompted)


values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), st.lists, max_leaves=3)


@settings(max_examples=25)
@given(st.sampled_from(sorted(FIELDS)), st.from_regex("x_[a-z_]{1,20}", fullmatch=True), values)
@example("/v1/embeddings", "foo", None)
def test_f8_unknown_fields_are_taken(prompted: Encoder, path: str, name: str, value: object) -> None:
    row = {"path": path, "body": {FIELDS[path]: TEXTS, name: value}, "encode": {}}
    check_vectors(row, send(AsyncEncoder(prompted).asgi_app("tiny", log="off"), row), prompted)


@pytest.mark.parametrize("row", read_table(TABLE, guarantee="f9"))
def test_f9_clients_are_told_what_they_act_on(prompted: Encoder, row: Row) -> None:
    app = AsyncEncoder(prompted).asgi_app("tiny", log="off", api_keys=("a-key",) if "keys" in row else ())
    check(row, send(app, row), prompted, app)


@pytest.mark.parametrize(
    ("path", "field", "words"),
    [
        ("/v1/embeddings", "input", ["model_not_found"]),
        ("/embed", "inputs", ["other"]),
        ("/api/embed", "input", ["not found, try pulling it first"]),
    ],
)
def test_f9_an_unknown_model(two_models: RunningServer, path: str, field: str, words: list[str]) -> None:
    answer = two_models.call("POST", path, {field: "a", "model": "other"})
    assert answer.status_code == 404
    assert all(part in answer.text for part in words)


# S4: a path, model or field that means something else gets no vectors.

ENDINGS = ("embed_all", "embed_sparse", "predict", "rerank", "embeed", "embed/x", "v1", "similarity/embed", "Embed")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [*(f"/models/tiny/{ending}" for ending in ENDINGS), "/models/no", "/models/no/embed"])
def test_s4_an_unknown_path_is_404(tiny: Encoder, method: str, path: str) -> None:
    app = AsyncEncoder(tiny).asgi_app("tiny", log="off")
    path = path if method == "POST" else f"{path}/info"
    assert asked(app, method, path, {"inputs": "a"} if method == "POST" else None).status == 404


@pytest.mark.parametrize("path", ["/models/one/embed", "/models/org/two/embed", "/models/org/two", "/models/one"])
def test_s4_paths_of_models(two_models: RunningServer, tiny: Encoder, path: str) -> None:
    answer = two_models.call("POST", path, {"inputs": ["a"]})
    np.testing.assert_allclose(answer.json(), tiny.encode(["a"], normalize_embeddings=True), atol=1e-5)
    for ending in ENDINGS:
        assert two_models.call("POST", f"{path}/{ending}", {"inputs": ["a"]}).status_code == 404


@settings(max_examples=30)
@given(st.from_regex("[A-Za-z0-9_.-]{1,12}(/[A-Za-z0-9_.-]{1,12}){0,2}", fullmatch=True))
@example("embed")
@example("ONE/embed")
def test_s4_an_unknown_model_of_several(two_models: RunningServer, name: str) -> None:
    assert two_models.call("POST", f"/models/no/{name}", {"inputs": ["a"]}).status_code in (404, 405)
    for path, field in FIELDS.items():
        assert two_models.call("POST", path, {field: "a", "model": f"no/{name}"}).status_code == 404
