"""Models, keys, a server that goes away, narrow screens. The pictures of the documentation are made here.

WHITEN_SCREENSHOT=docs/images/page.png writes them.
"""

import os
from pathlib import Path

import pytest

from support.browser import TRIED, Browser
from support.once import once
from support.server import RunningServer

pytestmark = pytest.mark.slow


def look_at(browser: Browser, view: str) -> None:
    """Go to a view, and wait until it is seen."""
    browser.click(f"nav a[href='#{view}']")
    browser.until(f"!document.getElementById('{view}').hidden")


def test_models_say_what_they_are(page: Browser, server: RunningServer) -> None:
    look_at(page, "models")
    page.until("document.querySelectorAll('#models article').length === 4")
    card = page.text("#models article")
    about = server.call("GET", "/models/tiny/info").json()["whiten"]
    for words in ("mean", about["whitening"], "48", "float32", f"{about['parity_cosine']:.7f}", about["space"]):
        assert words in card
    assert "int8" in page.text("#models article:nth-of-type(2)")


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, golden: Path) -> None:
    variables = {"WHITEN_API_KEY": "the-right-key"}
    with RunningServer(f"tiny={golden / 'bundle-v1'}", variables=variables) as server:
        browser.open(server.ready["page"])
        browser.until("!document.getElementById('key-form').hidden")
        hidden = "['try-error', 'try-form'].map((name) => document.getElementById(name).hidden)"
        assert browser.value(hidden) == [True, True]
        assert browser.value("document.activeElement.id") == "key"
        browser.write("#key", "schlüssel")
        browser.press("Enter")
        assert browser.value("document.getElementById('key').matches(':invalid')")
        browser.write("#key", "wrong")
        browser.press("Enter")
        browser.until("!document.getElementById('try-error').hidden")
        assert not browser.value("document.getElementById('key-form').hidden")
        browser.write("#key", "the-right-key ")
        browser.press("Enter")
        browser.until(TRIED)
        assert browser.value("document.getElementById('try-error').hidden")
        assert browser.text("#served") == "tiny"
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
        assert browser.text("#state") == "Ready"
    browser.click("#run")
    browser.until("!document.getElementById('try-error').hidden")
    assert browser.text("#try-result") == ""
    assert browser.text("#state") != "Ready"
    with RunningServer(bundle, "--listen", address.split("//")[1].rstrip("/")):
        browser.click("#run")
        browser.until(TRIED)
        assert browser.text("#state") == "Ready"
        assert browser.value("document.getElementById('try-error').hidden")


def test_below_a_path_and_on_a_narrow_screen(browser: Browser, golden: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('root-path = "/team/a"\n', "utf-8")
    with RunningServer(f"tiny={golden / 'bundle-v1'}", "--config", config) as server:
        assert server.ready["page"].endswith("/team/a/")
        for address in (server.ready["page"], server.ready["page"].rstrip("/")):
            browser.open(address)
            browser.until(TRIED)
            assert "/team/a/v1/embeddings" in browser.text("pre")
            for link in browser.value("[...document.querySelectorAll('footer a')].map((link) => link.href)"):
                assert server.client.get(link).status_code == 200
        for width in (400, 360):
            browser.see(width, 800)
            for view in ("try", "models"):
                look_at(browser, view)
                assert browser.value("document.documentElement.scrollWidth") == width, view
        scrolls = (
            "(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.querySelector('.heat .scroll'))"
        )
        told = "!document.querySelector('.heat .hint').hidden"
        browser.see(400, 800)
        look_at(browser, "try")
        browser.until(f"!({scrolls}) && !({told})")
        browser.write("#texts", "\n".join(f"line {place}" for place in range(9)))
        browser.click("#run")
        browser.until(f"{TRIED} && ({scrolls}) && ({told})")


def test_pictures(browser: Browser, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The real all-MiniLM-L6-v2 as published: a map in the light, a ranking in the dark."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    bundle = once(tmp_path_factory, "page-minilm", lambda path: export_bundle(Recipe("minilm"), path))
    light = Path(os.environ.get("WHITEN_SCREENSHOT") or tmp_path / "page.png").absolute()
    dark = light.with_name(f"{light.stem}-dark.png")
    with RunningServer(f"minilm={bundle}") as server:
        browser.see(1180, 860)
        browser.open(server.ready["page"])
        browser.until(TRIED)
        browser.picture(light)
        browser.see(1180, 860, "dark")
        browser.click("input[value=rank]")
        browser.click("#run")
        browser.until("document.querySelector('.bar')")
        browser.value("(document.activeElement.blur(), scrollTo(0, 0))")
        browser.picture(dark)
    assert min(light.stat().st_size, dark.stat().st_size) > 20_000
    assert light.read_bytes() != dark.read_bytes()
