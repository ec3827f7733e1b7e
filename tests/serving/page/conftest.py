"""The page of a server of small bundles, in a browser, and what the runtime computes for the same texts."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.browser import Browser
from support.server import RunningServer
from whiten import Encoder

NEEDED = ("httptools", "orjson", "prometheus_client", "uvicorn", "uvloop")

collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]

BUNDLES = {"tiny": "bundle-v1", "org/small@v1": "bundle-v1-int8", "published": "bundle-v1-published"}


@pytest.fixture(scope="session")
def server(golden: Path) -> Iterator[RunningServer]:
    with RunningServer(*(f"{name}={golden / bundle}" for name, bundle in BUNDLES.items())) as running:
        yield running


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def page(server: RunningServer, browser: Browser) -> Iterator[Browser]:
    """The page as somebody sees it first; nothing may be said on the console, or asked of another server."""
    browser.messages.clear()
    browser.requests.clear()
    browser.see(1280, 900)
    browser.open(server.ready["page"])
    browser.until("document.querySelector('.heat')")
    yield browser
    assert browser.messages == []
    own = (server.ready["page"], "data:", "about:")
    assert [url for url in browser.requests if not url.startswith(own)] == []


@pytest.fixture(scope="session")
def similarity(golden: Path) -> Callable[..., Any]:
    """Return the cosines of texts, [n, n], by the runtime itself."""

    def compute(model: str, texts: Sequence[str], **options: Any) -> Any:
        with Encoder(golden / BUNDLES[model]) as encoder:
            rows = encoder.encode(list(texts), normalize_embeddings=True, **options).astype(np.float64)
        return rows @ rows.T

    return compute
