"""GET / as browsers ask for it: one page, allowed to run only what is its own."""

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from support.asgi import asked
from whiten_serving.settings import Settings
from whiten_serving.sockets import page_url

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def hash_of(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def test_browsers_get_a_page_that_runs_only_what_is_its_own(app: Any) -> None:
    answer = asked(app, "GET", "/", headers=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert len(answer.body) <= 60_000
    text = answer.body.decode()
    policy = dict(one.strip().split(" ", 1) for one in answer.headers["content-security-policy"].split(";"))
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy["script-src"] == hash_of(script)
    assert policy["style-src"] == hash_of(style)
    assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"\son\w+=|javascript:|\sstyle=", text.replace(script, ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage", script)
    places = re.findall(r"(?:src|href)=\"([^\"]*)\"", text.replace(script, "")) + re.findall(
        r"url\(([^)]*)\)|@import", style
    )
    assert [place for place in places if not re.match(r"#\w+$|data:|(openapi\.json|metrics)$", place)] == []


def test_the_page_can_be_left_out_and_needs_no_key(app_with: Any) -> None:
    assert asked(app_with(page=False), "GET", "/", headers=BROWSER).headers["content-type"].startswith("text/plain")
    keyed = app_with(api_keys=("k",), root_path="/team")
    for path in ("/", "/team", "/team/"):
        assert b"<title>" in asked(keyed, "GET", path, headers=BROWSER).body
    assert asked(keyed, "GET", "/info", headers=BROWSER).status == 401


@pytest.mark.parametrize(
    ("address", "options", "url"),
    [
        ("127.0.0.1:8080", {}, "http://127.0.0.1:8080/"),
        ("0.0.0.0:80", {"root_path": "/team"}, "http://127.0.0.1:80/team/"),
        ("[::]:80", {"tls": "file"}, "https://[::1]:80/"),
        ("[::1]:80", {}, "http://[::1]:80/"),
        ("unix:/run/s", {}, None),
        ("127.0.0.1:8080", {"page": False}, None),
    ],
)
def test_where_a_browser_finds_it(address: str, options: dict[str, Any], url: str | None) -> None:
    assert page_url(Settings(**options), address) == url
