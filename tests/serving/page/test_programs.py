"""Copy as: what the page shows runs as it is, and gives the vectors or the ranking of the runtime."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import TRIED, Browser
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
QUERY = "'What' \"is\" \\n $(date)?"
KEY = "the-key"


@pytest.fixture(scope="module")
def page(golden: Path, browser: Browser) -> Iterator[Browser]:
    """A page on which a key was typed, and texts were tried with a prompt."""
    with RunningServer(f"tiny={golden / 'bundle-v1-published'}", variables={"WHITEN_API_KEY": KEY}) as server:
        browser.open(server.ready["page"])
        browser.until("!document.getElementById('key-form').hidden")
        browser.write("#key", KEY)
        browser.press("Enter")
        browser.until(TRIED)
        browser.write("#texts", "\n".join(TEXTS))
        browser.value(f"(document.getElementById('query').value = {json.dumps(QUERY)})")
        yield browser


VECTORS = {
    "curl": "",
    "Python": "import json; print(json.dumps(vectors))",
    "JavaScript": "console.log(JSON.stringify(vectors));",
}
"""What prints the vectors at the end of a program; that of curl prints the answer."""


def program(page: Browser, language: str, task: str) -> str:
    """Do a task, and return the program that the page shows for a language."""
    page.click(f"input[value={task}]")
    page.value("(document.getElementById('prompt').value = 'prompt_name query')")
    page.click("#run")
    page.until("!document.getElementById('run').disabled && document.querySelector('.copy')")
    choice = "document.querySelector('.copy select')"
    page.value(f"({choice}.value = {language!r}, {choice}.dispatchEvent(new Event('change')))")
    return str(page.value("document.querySelector('pre code').textContent"))


def printed(language: str, code: str, folder: Path) -> str:
    """Run a program, and return what it prints."""
    python = os.environ.get("WHITEN_SERVE_CLIENTS") or installed_environment("serving-clients", REQUIREMENTS)
    programs = {"curl": ["bash", "curl", "jq"], "Python": [str(python)], "JavaScript": ["node"]}[language]
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed")
    file = folder / "program.mjs"
    file.write_text(code, "utf-8")
    environment = os.environ | {"WHITEN_API_KEY": KEY}
    words = [programs[0], str(file)]
    done = subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("language", VECTORS)
def test_programs_give_the_vectors(page: Browser, golden: Path, tmp_path: Path, language: str) -> None:
    output = printed(language, f"{program(page, language, 'map')}\n{VECTORS[language]}\n", tmp_path)
    if language == "curl":
        vectors = [item["embedding"] for item in json.loads(output)["data"]]
    else:
        first, second = output.splitlines()
        assert first == "3 vectors of 16"
        vectors = json.loads(second)
    with Encoder(golden / "bundle-v1-published") as encoder:
        assert_near(vectors, encoder.encode(TEXTS, prompt_name="query"))


@pytest.mark.parametrize("language", VECTORS)
def test_programs_print_the_ranking(page: Browser, golden: Path, tmp_path: Path, language: str) -> None:
    lines = printed(language, program(page, language, "rank"), tmp_path).removesuffix("\n").split("\n")
    with Encoder(golden / "bundle-v1-published") as encoder:
        query, *rows = encoder.encode([QUERY, *TEXTS], prompt_name="query", normalize_embeddings=True)
    want = sorted(zip(rows @ query, TEXTS, strict=True), reverse=True)
    assert [line.split(" ", 1)[1] for line in lines] == [text for _, text in want]
    scores = [float(line.split(" ", 1)[0]) for line in lines]
    assert scores == pytest.approx([score for score, _ in want], abs=1e-4)


def test_the_button_copies_the_program(page: Browser) -> None:
    code = program(page, "JavaScript", "rank")
    page.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.click(".copy button")
    page.until("document.querySelector('.copy .hint').textContent !== ''")
    if page.text(".copy .hint") == "Copied":
        assert page.value("navigator.clipboard.readText()") == code
    else:
        assert page.value("getSelection().toString()") == code
