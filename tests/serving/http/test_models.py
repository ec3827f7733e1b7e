"""Replacing a model while requests run."""

import asyncio
from unittest.mock import Mock

from support.asgi import until
from whiten_serving import AsyncEncoder
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http.models import Models, ServedModel


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
        await Models([ServedModel("a", new), ServedModel("b", new)]).close()
        assert new.close.call_count == 1

    asyncio.run(run())
