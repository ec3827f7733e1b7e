"""Test examples/browser in headless Chromium: what it ranks and what it fetches.

WHITEN_SCREENSHOT=docs/images/browser.png writes the picture of the page that the documentation shows.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.browser import Browser
from support.once import once
from whiten import Encoder

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "examples" / "browser"
QUESTION = "How expensive is it to borrow money?"


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory, minilm_checkpoint: Path) -> Path:
    """The real all-MiniLM-L6-v2, layer 0, whitened, int8: the bundle that the page is made for."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    recipe = Recipe("minilm", layers=(0,), precision="int8", whitening="pca", max_sentences=4000)
    return once(tmp_path_factory, "edge-bundles/minilm-l0", lambda path: export_bundle(recipe, path))


@pytest.fixture(scope="module")
def address(lookup: Path, workspace: Path) -> Iterator[str]:
    sys.path.insert(0, str(PAGE))
    try:
        from serve import server
    finally:
        sys.path.remove(str(PAGE))
    with server(lookup, workspace / "node_modules") as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}/"
        serving.shutdown()


READY = "document.body?.dataset.ready === 'true' || document.querySelector('.failed') !== null"
ANSWERS = """[...document.querySelectorAll('#answers li')].map(
  (item) => [item.firstChild.textContent, item.querySelector('data').value])"""
STATE = f"""({{ answers: {ANSWERS}, status: document.getElementById('status').textContent,
  isolated: crossOriginIsolated }})"""


@pytest.fixture(scope="module")
def visited(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page says when it is opened, when it is asked a question, and when it is opened again."""
    folder = tmp_path_factory.mktemp("chromium")
    picture = Path(os.environ.get("WHITEN_SCREENSHOT") or folder / "page.png").absolute()
    with Browser(folder / "profile") as browser:
        browser.see(900, 930)

        def state(**more: Any) -> dict[str, Any]:
            browser.until(READY)
            seen = {"requests": list(browser.requests), "bytes": browser.bytes}
            return {**browser.value(STATE), **seen, **more}

        browser.open(address)
        first = state()
        browser.send("Page.bringToFront")
        browser.press("Tab")
        tabbed = browser.value("document.activeElement.id")
        browser.write("#question", QUESTION)
        browser.press("Enter")
        before = json.dumps(first["answers"][0][0])
        browser.until(f"document.querySelector('#answers li')?.firstChild.textContent !== {before}")
        asked = state(tabbed=tabbed)
        browser.value("document.activeElement.blur()")
        browser.picture(picture)
        browser.see(900, 930, "dark")
        browser.picture(picture.with_name(f"{picture.stem}-dark.png"))
        assert picture.stat().st_size > 5000
        browser.open(address)
        return {"first": first, "asked": asked, "again": state(), "messages": browser.messages}


def test_the_page_orders_sentences_as_python_does(visited: dict[str, Any], lookup: Path) -> None:
    for state, question in (("first", "How do birds catch fish?"), ("asked", QUESTION)):
        answers = visited[state]["answers"]
        sentences = [text for text, _ in answers]
        with Encoder(lookup) as encoder:
            want = encoder.similarity(encoder.encode(question), encoder.encode(sentences))[0]
        assert len(answers) == 5
        assert sorted(want, reverse=True) == pytest.approx(list(want), abs=1e-6)
        assert [float(score) for _, score in answers] == pytest.approx(list(want), abs=1e-5)
    assert "fish" not in visited["first"]["answers"][0][0] or "prey" in str(visited["first"]["answers"])
    assert not visited["messages"]


def test_the_page_asks_its_own_origin_alone(visited: dict[str, Any], address: str) -> None:
    requests = visited["first"]["requests"]
    hosts = {urlsplit(url).netloc for url in requests if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(address).netloc}
    assert len(visited["asked"]["requests"]) == len(requests)  # a search asks for nothing
    assert visited["first"]["bytes"] <= 16.3e6


def test_the_page_works_again_without_isolation_and_with_the_keyboard(visited: dict[str, Any]) -> None:
    assert visited["again"]["answers"] == visited["first"]["answers"]
    assert visited["first"]["isolated"] is False
    assert visited["asked"]["tabbed"] == "question"
    assert "ordered in" in visited["asked"]["status"]
