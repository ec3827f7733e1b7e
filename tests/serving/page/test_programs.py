"""Copy as: what the page shows runs as it is, and gives the vectors of the runtime."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Browser
from support.once import installed_environment
from support.server import RunningServer
from support.vectors import assert_near
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

REQUIREMENTS = Path(__file__).parents[1] / "clients" / "requirements.txt"
TEXTS = [
    "It's 'quoted' and \"double\" and `back` and ${HOME} and $(date) and !history",
    "back\\slash \\n \\u0041 % %s {0} #{x} <b>&amp;</b> -- /* */ //",
    "日本 👩‍👧 العربية עברית e\u0301 \u2028 \u00a0 tab\tend",
]
KEY = "the-key"


@pytest.fixture(scope="module")
def page(golden: Path, browser: Browser) -> Iterator[Browser]:
    """A page on which a key was typed, and texts were tried with a prompt."""
    with RunningServer(f"tiny={golden / 'bundle-v1-published'}", variables={"WHITEN_API_KEY": KEY}) as server:
        browser.open(server.ready["page"])
        browser.until("!document.getElementById('key-form').hidden")
        browser.write("#key", KEY)
        browser.press("Enter")
        browser.until("document.querySelector('.heat')")
        browser.value("(document.getElementById('prompt').value = 'name:query')")
        browser.write("#texts", "\n".join(TEXTS))
        browser.click("#run")
        browser.until("document.querySelectorAll('.map tbody tr').length === 3")
        yield browser


def shown(page: Browser, language: str) -> str:
    """Return the program that the page shows for a language."""
    page.click(f".tabs label:has([value={language}])")
    return str(page.value("document.querySelector('pre code').textContent"))


def run(*command: object, cwd: Path) -> str:
    environment = os.environ | {"WHITEN_API_KEY": KEY}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curl(page: Browser, folder: Path) -> Any:
    answer = json.loads(run("bash", "-c", shown(page, "curl"), cwd=folder))
    return [one["embedding"] for one in answer["data"]]


def python(page: Browser, folder: Path) -> Any:
    interpreter = os.environ.get("WHITEN_SERVE_CLIENTS") or installed_environment("serving-clients", REQUIREMENTS)
    (folder / "embed.py").write_text(shown(page, "Python") + "\nimport json; print(json.dumps(vectors))\n", "utf-8")
    first, second = run(interpreter, "embed.py", cwd=folder).splitlines()
    assert first == "3 vectors of 16"
    return json.loads(second)


def javascript(page: Browser, folder: Path) -> Any:
    needed("node")
    code = shown(page, "JavaScript") + "\nconsole.log(JSON.stringify(vectors));\n"
    (folder / "embed.mjs").write_text(code, "utf-8")
    first, second = run("node", "embed.mjs", cwd=folder).splitlines()
    assert first == "3 vectors of 16"
    return json.loads(second)


def java(page: Browser, folder: Path) -> Any:
    needed("javac")
    (folder / "Embed.java").write_text(shown(page, "Java"), "utf-8")
    status, _, body = run("java", "-Dfile.encoding=UTF-8", "Embed.java", cwd=folder).partition(" ")
    assert status == "200"
    return [one["embedding"] for one in json.loads(body)["data"]]


def needed(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


@pytest.mark.parametrize("language", [curl, python, javascript, java])
def test_programs_run_as_they_are(
    page: Browser, golden: Path, tmp_path: Path, language: Callable[[Browser, Path], Any]
) -> None:
    with Encoder(golden / "bundle-v1-published") as encoder:
        assert_near(language(page, tmp_path), encoder.encode(TEXTS, prompt_name="query"))


def test_the_button_copies_the_program(page: Browser) -> None:
    code = shown(page, "JavaScript")
    page.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.click(".tabs button")
    page.until("document.querySelector('.tabs .hint').textContent !== ''")
    if page.text(".tabs .hint") == "Copied":
        assert page.value("navigator.clipboard.readText()") == code
    else:
        assert page.value("getSelection().toString()") == code
