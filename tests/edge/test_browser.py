"""Test examples/browser in headless Chromium: what it ranks and what it fetches.

WHITEN_SCREENSHOT=docs/images/browser.png writes the picture of the page that the documentation shows.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.once import once
from whiten import Encoder

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "examples" / "browser"
QUESTION = "How expensive is it to borrow money?"


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("chromium is not installed; apt-get install --no-install-recommends chromium")
    return found


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory, minilm_checkpoint: Path) -> Path:
    """The real all-MiniLM-L6-v2, layer 0, whitened, int8: the bundle that the page is made for."""
    from whiten_export.pipeline.export import export_bundle
    from whiten_export.pipeline.recipe import Recipe

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


@pytest.fixture(scope="module")
def visited(
    address: str, chromium: str, node: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    profile = tmp_path_factory.mktemp("chromium")
    picture = os.environ.get("WHITEN_SCREENSHOT") or str(profile / "page.png")
    given = {"page": address, "chromium": chromium, "profile": str(profile), "question": QUESTION}
    found: dict[str, Any] = node("browser.mjs", given | {"screenshot": str(Path(picture).absolute())})
    assert Path(picture).stat().st_size > 5000
    return found


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
    assert visited["first"]["bytes"] <= 16.1e6


def test_the_page_works_again_without_isolation_and_with_the_keyboard(visited: dict[str, Any]) -> None:
    assert visited["again"]["answers"] == visited["first"]["answers"]
    assert visited["first"]["isolated"] is False
    assert visited["asked"]["tabbed"] == "question"
    assert "ordered in" in visited["asked"]["status"]
