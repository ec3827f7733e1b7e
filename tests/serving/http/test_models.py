"""Replacing a model while requests run."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from support.asgi import ask, until
from whiten_serving import AsyncEncoder
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http.app import make_app
from whiten_serving.http.inputs import Inputs
from whiten_serving.http.models import Models, ServedModel
from whiten_serving.http.service import Service
from whiten_serving.settings import Settings


def test_a_replaced_model_stays_open_until_its_last_request_has_ended(served: AsyncEncoder) -> None:
    async def run() -> None:
        old, new = (Mock(spec=EncoderQueue, encoder=Mock()) for _ in range(2))
        models = Models([ServedModel("a", old), ServedModel("b", served._queue)])
        with models.using(models.get("a")), models.using(models.get("a")) as using:
            models.replace(ServedModel("a", new))
            assert models.get("a").queue is new
            assert using.queue is old
            await asyncio.sleep(0.01)
            assert not old.close.called
        await until(lambda: old.close.called)
        assert not new.close.called
        models.replace(ServedModel("a", served._queue))
        await until(lambda: new.close.called)
        assert models.names == ("a", "b")
        assert not old.encoder.close.called  # it is not theirs

    asyncio.run(run())


def test_a_bundle_that_is_replaced_while_token_ids_are_turned_back(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> Any:
        first = EncoderQueue(golden / "bundle-v1")
        models = Models([ServedModel("a", EncoderQueue(golden / "bundle-v1", first.scheduler))])
        app = make_app(Service(models, Settings(token_ids="own")))
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


def test_models_of_one_bundle_share_a_queue_that_is_closed_with_the_last_of_them(served: AsyncEncoder) -> None:
    async def run() -> None:
        old, new = (Mock(spec=EncoderQueue, encoder=Mock()) for _ in range(2))
        models = Models([ServedModel("a", old), ServedModel("b", old), ServedModel("c", served._queue)])
        models.replace(ServedModel("a", new))
        await asyncio.sleep(0.01)
        assert not old.close.called  # b is served by it, though no request uses it
        with models.using(models.get("b")):
            with models.using(models.get("a")):
                pass
            models.replace(ServedModel("b", new))
            await asyncio.sleep(0.01)
            assert not old.close.called
        await until(lambda: old.close.called)
        assert old.close.call_count == 1
        assert not new.close.called

    asyncio.run(run())
