"""The other views, keys, and a server that goes away. The pictures of the documentation are made here.

WHITEN_SCREENSHOT=docs/images/page.png writes them.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.browser import TRIED, Browser
from support.corpus import sentences
from support.once import once
from support.server import RunningServer

pytestmark = pytest.mark.slow


def look_at(browser: Browser, view: str) -> None:
    """Go to a view, and wait until it is seen."""
    browser.click(f"nav a[href='#{view}']")
    browser.until(f"!document.getElementById('{view}').hidden")


MAPS = """[...document.querySelectorAll('#compare .map')].map((map) => [...map.querySelectorAll('tbody tr')].map(
  (row) => [...row.querySelectorAll('td')].map((cell) => Number(cell.innerText.replace('−', '-')))))"""


def test_compare_shows_both_models_and_what_differs_most(page: Browser, similarity: Callable[..., Any]) -> None:
    texts = sentences(7)
    look_at(page, "compare")
    page.write("#compare-texts", "\n".join(texts))
    page.click("#compare-form button")
    page.until("document.querySelectorAll('#compare .map').length === 2")
    first, second = (similarity(name, texts) for name in ("tiny", "org/small@v1"))
    np.testing.assert_allclose(page.value(MAPS), [first, second], atol=0.00501)
    rows = page.value(
        "[...document.querySelectorAll('#compare .list tbody tr')].map((row) => row.innerText.split('\\t'))"
    )
    assert len(rows) == 10
    found = [float(row[2].replace("−", "-")) for row in rows]
    differences = (second - first)[np.triu_indices(7, 1)]
    want = sorted(differences, key=abs, reverse=True)[:10]
    np.testing.assert_allclose(np.abs(found), np.abs(want), atol=0.00501)
    page.write("#compare-texts", "one")
    page.click("#compare-form button")
    page.until("!document.getElementById('compare-error').hidden")
    assert page.text("#compare-error") == "Write at least two lines."


def test_models_say_what_they_are(page: Browser, server: RunningServer) -> None:
    look_at(page, "models")
    page.until("document.querySelectorAll('#models article').length === 3")
    card = page.text("#models article")
    info = server.call("GET", "/models/tiny/info").json()
    size = next(one for one in server.call("GET", "/api/tags").json()["models"] if one["name"] == "tiny:latest")["size"]
    for words in (
        "Layers\n1, 4",
        "Pooling\nmean",
        f"Whitening\n{info['whiten']['whitening']}",
        "Length\n48 tokens",
        "Precision\nfloat32",
        f"Size\n{size / 1000:.0f} kB",
        f"worst cosine with the original {info['whiten']['parity_cosine']:.7f}",
        f"Space\n{info['whiten']['space']}",
    ):
        assert words in card
    other = page.text("#models article:nth-of-type(2)")
    assert other.startswith("org/small@v1")
    assert "Precision\nint8" in other
    assert "Size\n" in other


def test_now_counts_from_when_the_page_was_opened(page: Browser, server: RunningServer) -> None:
    look_at(page, "now")
    page.until("document.querySelector('.tile')")
    before = int(page.text(".tile:nth-of-type(1) .more").split()[0])
    for text in sentences(20):
        server.embed(text, model="tiny")
    server.call("POST", "/v1/embeddings", {"input": [], "model": "tiny"})
    page.until(f"parseInt(document.querySelector('.tile .more').innerText) >= {before + 20}")
    tiles = page.value(
        "[...document.querySelectorAll('.tile')].map((tile) => tile.innerText.split('\\n').filter(Boolean))"
    )
    by_title = {title: rest for title, *rest in tiles}
    assert re.fullmatch(r"[\d.]+ ms", by_title["Time of a request, p50"][0])
    assert by_title["Waiting"][0] == "0 requests"
    assert by_title["Memory"][0].endswith(" MB")
    assert (by_title["Errors"][0], by_title["Errors"][-1]) == ("1", "1 × 400")
    assert "tiny" in page.text("#now-tables")
    page.until("document.querySelectorAll('.tile svg').length === 4")


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, golden: Path) -> None:
    variables = {"WHITEN_API_KEY": "the-right-key"}
    with RunningServer(f"tiny={golden / 'bundle-v1'}", variables=variables) as server:
        browser.open(server.ready["page"])
        browser.until("!document.getElementById('key-form').hidden")
        assert browser.text("#key-note").startswith("This server wants a key.")
        hidden = "['try-error', 'try-form', 'compare-form'].map((name) => document.getElementById(name).hidden)"
        assert browser.value(hidden) == [True, True, True]
        assert browser.value("document.activeElement.id") == "key"
        for typed, said in (
            ("wrong", "the request's key is not one of this server; check it"),
            ("schlüssel", "A key has letters, digits and signs of ASCII, and no blanks."),
        ):
            browser.write("#key", typed)
            browser.press("Enter")
            browser.until("!document.getElementById('try-error').hidden")
            browser.until(
                f"document.getElementById('try-error').textContent === {said!r}" if "'" not in said else "true"
            )
            browser.until("!document.getElementById('key-form').hidden")
            assert browser.text("#try-error") == said
        browser.write("#key", "the-right-key")
        browser.press("Enter")
        browser.until(TRIED)
        assert browser.value("document.getElementById('try-error').hidden")
        stores = "localStorage.length + sessionStorage.length"
        kept = f"[document.documentElement.outerHTML, document.cookie, location.href, {stores}]"
        html, cookie, address, stored = browser.value(kept)
        assert "the-right-key" not in html + cookie + address
        assert stored == 0
        assert "$WHITEN_API_KEY" in browser.text("pre")
        browser.open(server.ready["page"])
        browser.until("!document.getElementById('key-form').hidden")


def test_a_server_that_goes_away_and_comes_back(browser: Browser, golden: Path) -> None:
    bundle = f"tiny={golden / 'bundle-v1'}"
    with RunningServer(bundle) as server:
        address = server.ready["page"]
        browser.open(address)
        browser.until(TRIED)
        look_at(browser, "now")
        browser.until("document.querySelector('.tile')")
        look_at(browser, "compare")
        assert "Start it with two to compare them" in browser.text("#compare-one")
        look_at(browser, "try")
    browser.click("#run")
    browser.until("!document.getElementById('try-error').hidden")
    assert browser.text("#try-error").startswith("The server does not answer.")
    assert browser.text("#state") == "Does not answer"
    look_at(browser, "now")
    browser.until("document.getElementById('now-note').textContent.startsWith('The server does not answer. These are')")
    with RunningServer(bundle, "--listen", address.split("//")[1].rstrip("/")):
        browser.until("document.getElementById('state').textContent === 'Answering'")
        look_at(browser, "try")
        browser.click("#run")
        browser.until("document.getElementById('try-error').hidden && !document.getElementById('run').disabled")
        browser.until(TRIED)


def test_below_a_path_and_on_a_narrow_screen(browser: Browser, golden: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('root-path = "/team/a"\n', "utf-8")
    with RunningServer(f"tiny={golden / 'bundle-v1'}", "--config", config) as server:
        assert server.ready["page"].endswith("/team/a/")
        for address in (server.ready["page"], server.ready["page"].rstrip("/")):
            browser.open(address)
            browser.until(TRIED)
            assert "/team/a/v1/embeddings" in browser.text("pre")
        browser.see(390, 800)
        for view in ("try", "compare", "models", "now"):
            look_at(browser, view)
            assert browser.value("document.documentElement.scrollWidth") == 390, view


def test_pictures(browser: Browser, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The real all-MiniLM-L6-v2, layers 0 and 1, as they are and whitened: light, and dark."""
    from whiten_export.pipeline.export import export_bundle
    from whiten_export.pipeline.recipe import Recipe

    def bundle(whitening: Any) -> Path:
        fitted: dict[str, Any] = {"max_sentences": 2000} if whitening else {}
        recipe = Recipe("minilm", layers=(0, 1), whitening=whitening, **fitted)
        return once(tmp_path_factory, f"page/{whitening}", lambda path: export_bundle(recipe, path))

    light = Path(os.environ.get("WHITEN_SCREENSHOT") or tmp_path / "page.png").absolute()
    dark = light.with_name(f"{light.stem}-dark.png")
    with RunningServer(f"plain={bundle(None)}", f"whitened={bundle('auto')}") as server:
        browser.see(1180, 860)
        browser.open(server.ready["page"])
        browser.until(TRIED)
        browser.picture(light)
        browser.see(1180, 1010, "dark")
        look_at(browser, "compare")
        browser.click("#compare-form button")
        browser.until("document.querySelectorAll('#compare .map').length === 2")
        browser.value("(document.activeElement.blur(), scrollTo(0, 0))")
        browser.picture(dark)
    assert min(light.stat().st_size, dark.stat().st_size) > 20_000
    assert light.read_bytes() != dark.read_bytes()
