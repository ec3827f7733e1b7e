"""The page of a server of small bundles, in a browser, and what the runtime computes for the same texts."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.browser import TRIED, Browser
from support.bundles import copy_bundle
from support.once import once
from support.server import RunningServer
from whiten import Encoder

NEEDED = ("orjson", "prometheus_client", "uvicorn", "uvloop")

collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]


@pytest.fixture(scope="session")
def bundles(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return bundles: cut to any width, in int8, with prompts, cut to two widths."""
    published = golden / "bundle-v1-published"
    cut = once(tmp_path_factory, "page", lambda path: copy_bundle(published, path, matryoshka_dimensions=[4, 8]))
    return {
        "tiny": golden / "bundle-v1",
        "org/small@v1": golden / "bundle-v1-int8",
        "published": published,
        "matryoshka": cut / "copy",
    }


@pytest.fixture(scope="session")
def server(bundles: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(*(f"{name}={bundle}" for name, bundle in bundles.items())) as running:
        yield running


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def page(server: RunningServer, browser: Browser) -> Iterator[Browser]:
    """The page as somebody sees it first; nothing may be said on the console, or asked of another server."""
    browser.messages.clear()
    browser.see(1280, 900)
    browser.open(server.ready["page"])
    browser.until(TRIED)
    yield browser
    assert browser.messages == []
    own = (server.ready["page"], "data:", "about:")
    assert [url for url in browser.requests if not url.startswith(own)] == []


@pytest.fixture(scope="session")
def similarity(bundles: dict[str, Path]) -> Callable[..., Any]:
    """Return the cosines of texts, [n, n], by the runtime itself."""

    def compute(model: str, texts: Sequence[str], **options: Any) -> Any:
        with Encoder(bundles[model]) as encoder:
            rows = encoder.encode(list(texts), normalize_embeddings=True, **options).astype(np.float64)
        return rows @ rows.T

    return compute
