"""Metrics, as Prometheus reads them, and the line of each request: what it has, and what it never has."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.asgi import ask, asked, until
from support.bundles import copy_bundle
from support.timed import slow, text_of
from whiten import Encoder
from whiten_serving import AsyncEncoder
from whiten_serving.requests import Batch


def read(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(page.decode()))
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(samples: Any, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_requests_are_counted(app: Any) -> None:
    texts = ["a", "b", "word " * 300]
    tokens = asked(app, "POST", "/v1/embeddings", {"input": texts}).json()["usage"]["total_tokens"]
    asked(app, "POST", "/v1/embeddings", {"input": []})
    asked(app, "POST", "/v1/embeddings/not-there/" + "x" * 50)
    asked(app, "GET", "/v1/models/tiny")
    found, route = read(asked(app, "GET", "/metrics").body), "/v1/embeddings"
    assert value(found, "whiten_requests_total", client="", route=route, model="tiny", status="200") == 1
    assert value(found, "whiten_requests_total", client="", route=route, model="", status="400") == 1
    assert value(found, "whiten_requests_total", client="", route="unknown", model="", status="404") == 1
    assert value(found, "whiten_requests_total", client="", route="/v1/models/{id}", model="", status="200") == 1
    assert value(found, "whiten_texts_total", model="tiny") == 3
    assert value(found, "whiten_tokens_total", model="tiny") == tokens
    assert value(found, "whiten_truncated_total", model="tiny") == 1
    for name in ("request_seconds", "queue_seconds", "run_seconds", "tokenize_seconds"):
        labels = {"route": route, "status": "2xx"} if name == "request_seconds" else {}
        assert value(found, f"whiten_{name}_count", model="tiny", **labels) == 1
    info = next(dict(labels) for name, labels in found if name == "whiten_info")
    assert len(info["bundle_sha256"]) == 64
    assert (info["precision"], info["provider"]) == ("fp32", "CPUExecutionProvider")


WAITING = 5
"""Requests that wait while another one is computed."""


def test_times_are_those_of_a_clock(timed_bundle: Path) -> None:
    """One request is computed, which takes all of the time nearly, while others wait."""

    async def run() -> tuple[dict[str, float], float]:
        async with AsyncEncoder(timed_bundle, lanes=1) as encoder:
            app, route = encoder.asgi_app("timed"), "/v1/embeddings"
            begun = time.monotonic()
            first = asyncio.create_task(ask(app, "POST", route, {"input": f"{slow(724)} {text_of(900)}"}))
            await until(lambda: encoder.stats().lanes_busy == 1)
            others = [ask(app, "POST", route, {"input": text_of(9, number)}) for number in range(WAITING)]
            assert {answer.status for answer in await asyncio.gather(first, *others)} == {200}
            seconds = time.monotonic() - begun
            found = read((await ask(app, "GET", "/metrics")).body)
            sums = {
                name: value(found, f"whiten_{name}_seconds_sum", model="timed") for name in ("tokenize", "queue", "run")
            }
            labels = {"model": "timed", "route": route, "status": "2xx"}
            return sums | {"request": value(found, "whiten_request_seconds_sum", **labels)}, seconds

    sums, seconds = asyncio.run(run())
    assert sums["tokenize"] < sums["run"] < 2 * seconds
    assert WAITING * seconds / 2 < sums["queue"] < WAITING * seconds
    assert sums["tokenize"] + sums["queue"] + sums["run"] <= sums["request"] <= (1 + WAITING) * seconds


def test_labels_are_bounded_whatever_requests_ask_for(app: Any) -> None:
    for index in range(50):
        asked(app, "GET", f"/v1/models/{index}")
        asked(app, "POST", "/v1/embeddings", {"input": "a", "model": f"m{index}"})
        asked(app, "GET", f"/{index}")
    assert b'"m7"' not in app.state.service.metrics.page()
    assert len([one for one in read(app.state.service.metrics.page()) if one[0] == "whiten_requests_total"]) == 3


SECRET = "a secret sentence that nobody may log"
FIELDS = [
    *("time", "id", "method", "route", "model", "status", "texts", "tokens", "truncated", "zeros"),
    *("queue_ms", "run_ms", "total_ms"),
]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "whiten.access"]


def test_json(app_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(log="json")
    with caplog.at_level("INFO", "whiten.access"):
        asked(app, "POST", "/v1/embeddings", {"input": [SECRET, "b"]}, headers={"x-request-id": "abc"})
        asked(app, "POST", "/embed", {"inputs": []})
    first, second = map(json.loads, lines(caplog))
    assert list(first) == FIELDS
    assert (first["id"], first["route"], first["model"], first["status"]) == ("abc", "/v1/embeddings", "tiny", 200)
    assert (first["texts"], first["method"]) == (2, "POST")
    assert first["tokens"] > 2
    assert first["total_ms"] >= first["run_ms"] > 0
    assert list(second) == [*FIELDS, "error"]
    assert (second["status"], second["error"]) == (400, "empty_input")


def test_the_name_of_a_key_is_logged_and_counted(app_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(api_keys={"k1": "alice", "k2": "bob", "k3": "bob", "k4": ""}, log="json")
    with caplog.at_level("INFO", "whiten.access"):
        for key in ("k1", "k2", "k3", "k4", "wrong"):
            asked(app, "POST", "/embed", {"inputs": "a"}, headers={"x-api-key": key})
        asked(app, "POST", "/embed", {"inputs": []}, headers={"authorization": "Bearer k1"})
        asked(app, "GET", "/ready", headers={"x-api-key": "k1"})
    clients = ["alice", "bob", "bob", None, None, "alice", None]
    assert [json.loads(line).get("client") for line in lines(caplog)] == clients
    page = asked(app, "GET", "/metrics", headers={"x-api-key": "k4"}).body.decode()
    for client, status, count in (("alice", 200, 1), ("bob", 200, 2), ("", 200, 1), ("", 401, 1), ("alice", 400, 1)):
        labels = f'client="{client}",model="{"" if status > 200 else "tiny"}",route="/embed",status="{status}"'
        assert f"whiten_requests_total{{{labels}}} {count}.0" in page
    assert "k1" not in page


def test_texts_that_bring_the_prompt_are_counted(golden: Path, tmp_path: Path) -> None:
    prompts = {"query": "query: ", "around": 'Sum up "{text}":'}
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, prompts=prompts, default_prompt_name="query")
    with Encoder(bundle) as encoder:
        app = AsyncEncoder(encoder).asgi_app("e5", log="off")
        for fields in (
            {"input": ["query: a", "a", "query:b"]},
            {"input": "query: a", "input_type": "query"},
            {"input": "query: a", "prompt_name": ""},
            {"input": 'Sum up "b":', "prompt_name": "around"},
            {"input": "query: a", "prompt": "query: "},
            {"input": "a", "prompt": " "},
        ):
            assert asked(app, "POST", "/v1/embeddings", fields).status == 200
        assert value(read(app.state.service.metrics.page()), "whiten_repeated_prompts_total", model="e5") == 4


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_text_is_ever_logged(
    app_with: Any, form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_with(log=form, api_keys=(SECRET[:8],))
    headers = {"x-api-key": SECRET[:8]}
    with caplog.at_level("DEBUG"):
        for body in (
            {"input": SECRET},
            {"input": [SECRET], "model": SECRET},
            {"input": SECRET, SECRET: 1},
            {"input": SECRET, "encoding_format": SECRET},
            {"input": SECRET, "prompt_name": SECRET},
            SECRET.encode(),
        ):
            asked(app, "POST", "/v1/embeddings", body, headers=headers)
        asked(app, "GET", f"/{SECRET}", headers=headers)
        asked(app, SECRET.upper(), "/live", headers=headers)
        with monkeypatch.context() as patched:
            patched.setattr(type(app.state.service.models), "get", lambda *_: {}[SECRET])
            failed = asked(app, "POST", "/v1/embeddings", {"input": SECRET}, headers=headers)
        assert (failed.status, failed.json()["error"]["code"]) == (500, "engine")
        assert SECRET not in failed.body.decode()
        assert asked(app, "POST", "/v1/embeddings", {"input": SECRET}, headers=headers).status == 200
    assert len(lines(caplog)) == 10
    assert not any("secret" in str(record).lower() for record in caplog.records if record.name.startswith("whiten"))


def test_one_line_a_request_whatever_it_holds(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "whiten.access"):
        asked(app, "GET", "/live%0aforged", headers={"x-request-id": "a b"})
        asked(app, "POST", "/embed", {"inputs": "a\nb"})
    assert all("\n" not in line and "\r" not in line for line in lines(caplog))
    assert not any("forged" in line for line in lines(caplog))


def test_live_fails_while_a_batch_runs_on_that_was_to_end(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = app.state.service.models.scheduler
    for name in ("stuck_seconds", "failing_seconds"):
        for seconds, status in ((0.0, 200), (59.0, 200), (61.0, 503)):
            with monkeypatch.context() as patched:
                patched.setattr(scheduler, name, lambda *runner, seconds=seconds: seconds)
                assert asked(app, "GET", "/live").status == status


def test_batches_are_counted(app: Any) -> None:
    metrics = app.state.service.metrics
    metrics.on_batch(Batch({}, texts=2, tokens=17, padding=1))
    found = read(metrics.page())
    assert [value(found, f"whiten_batch_{name}_sum") for name in ("texts", "tokens")] == [2, 17]
