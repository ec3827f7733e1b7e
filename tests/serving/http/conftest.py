"""Fixtures of the HTTP application: a golden bundle behind it, in this process."""

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from whiten import Encoder
from whiten_serving import AsyncEncoder

collect_ignore_glob = [] if find_spec("orjson") and find_spec("prometheus_client") else ["test_*.py"]


@pytest.fixture(scope="session")
def served(golden: Path) -> Iterator[AsyncEncoder]:
    """One encoder of a golden bundle, for all tests that do not fill its queue or close it."""
    encoder = AsyncEncoder(golden / "bundle-v1")
    yield encoder
    asyncio.run(encoder.close())
    encoder._queue.encoder.close()


@pytest.fixture(scope="session")
def reference(golden: Path) -> Iterator[Encoder]:
    """The same bundle without a batcher."""
    with Encoder(golden / "bundle-v1") as encoder:
        yield encoder


@pytest.fixture
def app_with(served: AsyncEncoder) -> Callable[..., Any]:
    """Return a function that makes an application with options, on the shared encoder."""
    return lambda **options: served.asgi_app("tiny", **options)


@pytest.fixture
def app(app_with: Callable[..., Any]) -> Any:
    """An application with the default options."""
    return app_with()
