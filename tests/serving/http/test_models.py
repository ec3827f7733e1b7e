"""Several models, and replacing one while requests run."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.asgi import ROUTES, ask, asked
from support.vectors import assert_near
from whiten import Encoder
from whiten_runtime.errors import UsageError
from whiten_serving import AsyncEncoder
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http.app import check_paths, make_app
from whiten_serving.http.errors import ApiError
from whiten_serving.http.inputs import Inputs
from whiten_serving.http.models import Models, ServedModel
from whiten_serving.http.service import Service
from whiten_serving.settings import AppSettings


def app_of(models: Models, settings: AppSettings | None = None) -> Any:
    settings = settings or AppSettings()
    check_paths(models.names, settings.root_path)
    return make_app(Service(models, settings))


@pytest.fixture
def two(golden: Path) -> Iterator[Models]:
    """Two models on one scheduler: "one" is float32, "org/two" int8."""
    first = EncoderQueue(golden / "bundle-v1")
    second = EncoderQueue(golden / "bundle-v1-int8", first.scheduler)
    models = Models([ServedModel("one", first), ServedModel("org/two", second)])
    yield models
    second.close()
    first.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a", "model": "org/two", "normalize": True}),
        ("/openai/deployments/org/two/embeddings", {"input": "a", "model": "one", "normalize": True}),
        ("/embed", {"inputs": "a", "model": "org/two"}),
        ("/models/org/two/embed", {"inputs": "a"}),
        ("/models/org/two", {"inputs": "a"}),
        ("/api/embed", {"input": "a", "model": "org/two:latest"}),
    ],
)
def test_every_dialect_names_a_model(two: Models, golden: Path, path: str, body: object) -> None:
    found = asked(app_of(two), "POST", path, body).json()
    if isinstance(found, dict):
        found = found["embeddings"] if "embeddings" in found else [found["data"][0]["embedding"]]
    with Encoder(golden / "bundle-v1-int8") as encoder:
        assert_near(found, encoder.encode(["a"], normalize_embeddings=True))


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        ("/models/one/embed", "org/two", 422),
        ("/models/org/two/embed", "one", 422),
        ("/models/one/tokenize", "org/two", 422),
        ("/models/one/embed", "three", 404),
        ("/models/one/embed", "one:latest", 200),
        ("/models/org/two", "org/two", 200),
    ],
)
def test_the_path_and_the_body_name_one_model(two: Models, path: str, name: str, status: int) -> None:
    answer = asked(app_of(two), "POST", path, {"inputs": "a", "model": name})
    assert answer.status == status
    if status == 422:
        assert b"leave one out" in answer.body


def named(models: Models, name: str) -> Models:
    """Return the models, of which the second has another name."""
    first, second = models
    return Models([first, ServedModel(name, second.queue)])


@pytest.mark.parametrize("name", ["embed", "one/x", "one/embed/b", "one-embed", "one/health", "a/info", "a/embeddings"])
def test_a_model_is_at_its_own_path_whatever_its_name(two: Models, name: str) -> None:
    app = app_of(named(two, name))
    for path in ("", "/embed", "/invocations", "/tokenize"):
        assert asked(app, "POST", f"/models/{name}{path}", {"inputs": "a"}).status == 200
    assert asked(app, "GET", f"/models/{name}/info").json()["model_dtype"] == "int8"
    assert asked(app, "POST", f"/openai/deployments/{name}/embeddings", {"input": "a"}).json()["model"] == name
    assert asked(app, "GET", f"/v1/models/{name}").json()["id"] == name


@pytest.mark.parametrize("name", ["one/embed", "one/tokenize", "one/similarity", "one/invocations", "{a}"])
def test_a_model_whose_own_path_would_be_another_route_is_refused(two: Models, name: str) -> None:
    with pytest.raises(UsageError, match="its path '/models/.*' is another route; choose"):
        app_of(named(two, name))


UNKNOWN = [
    *ROUTES.items(),
    ("/v1/embeddings", {"input": "a", "model": "three"}),
    ("/models/three/embed", {"inputs": "a"}),
    ("/api/embed", {"input": "a", "model": "three"}),
    ("/api/embeddings", {"prompt": "a", "model": ""}),
]
"""Paths and bodies that name no model, or one that is not served."""


@pytest.mark.parametrize(("path", "body"), UNKNOWN)
def test_unknown_models_are_404_with_the_names_that_there_are(two: Models, path: str, body: object) -> None:
    answer = asked(app_of(two), "POST", path, body)
    assert answer.status == 404
    assert "one, org/two" in answer.body.decode()


def test_models_are_listed(two: Models) -> None:
    app = app_of(two)
    assert [one["id"] for one in asked(app, "GET", "/v1/models").json()["data"]] == ["one", "org/two"]
    assert asked(app, "GET", "/v1/models/org/two").json()["id"] == "org/two"
    assert asked(app, "GET", "/models/org/two/info").json()["model_dtype"] == "int8"
    assert asked(app, "GET", "/info").json()["whiten"]["models"] == ["one", "org/two"]
    assert len(asked(app, "GET", "/api/tags").json()["models"]) == 2


def test_a_single_model_answers_to_any_name_but_is_listed_by_its_own(served: AsyncEncoder) -> None:
    models = Models([ServedModel("a", served._queue)])
    assert models.get(None).name == models.get("other").name == "a"
    assert models.named("a:latest").name == "a"
    with pytest.raises(ApiError, match="'other'"):
        models.named("other")
    with pytest.raises(ApiError) as caught:
        models.named("x" * 1000)
    assert len(str(caught.value)) < 200


class Recorder:
    """Notes when the encoder that it stands for is closed."""

    def __init__(self, queue: EncoderQueue) -> None:
        self._queue = queue
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def close(self, wait: bool = True) -> None:
        self.closed = True


def test_a_replaced_model_stays_open_until_its_last_request_has_ended(served: AsyncEncoder) -> None:
    async def run() -> None:
        old, new = Recorder(served._queue), Recorder(served._queue)
        models = Models([ServedModel("a", old), ServedModel("b", served._queue)])
        with models.using(models.get("a")), models.using(models.get("a")) as using:
            models.replace(ServedModel("a", new))
            assert models.get("a").queue is new
            assert using.queue is old
            await asyncio.sleep(0.01)
            assert not old.closed
        await asyncio.sleep(0.01)
        assert (old.closed, new.closed) == (True, False)
        models.replace(ServedModel("a", served._queue))
        await asyncio.sleep(0.01)
        assert new.closed
        assert models.names == ("a", "b")

    asyncio.run(run())


def test_a_bundle_that_is_replaced_while_token_ids_are_turned_back(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> Any:
        first = EncoderQueue(golden / "bundle-v1")
        models = Models([ServedModel("a", EncoderQueue(golden / "bundle-v1", first.scheduler))])
        app = app_of(models, AppSettings(token_ids="own"))
        plain = Inputs.texts

        async def replaced(*given: Any) -> list[str]:
            found = await plain(*given)
            models.replace(ServedModel("a", EncoderQueue(golden / "bundle-v1", first.scheduler)))
            await asyncio.sleep(0.05)
            return found

        monkeypatch.setattr(Inputs, "texts", replaced)
        ids = [one.id for one in first.encoder.tokens("hello")]
        answer = await ask(app, "POST", "/embed", {"inputs": [ids]})
        await models.close()
        first.close()
        return answer

    answer = asyncio.run(run())
    assert answer.status == 200, answer.body
