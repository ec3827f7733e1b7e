"""Try: texts of every kind are compared and ranked as the runtime does it, by mouse and by keyboard."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.browser import Browser
from support.corpus import sentences
from whiten import Encoder

pytestmark = pytest.mark.slow

CELLS = """[...document.querySelectorAll('.map tbody tr')].map(
  (row) => [...row.querySelectorAll('td')].map((cell) => cell.innerText))"""
LABELS = "[...document.querySelectorAll('.map tbody th')].map((head) => head.lastChild.textContent)"
RANKS = (
    "[...document.querySelectorAll('#try-result tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
)
RESULT = "[document.getElementById('try-done'), document.getElementById('try-result')].map((place) => place.innerText)"
WIDTHS = "[...document.getElementById('dimensions').options].map((option) => option.textContent)"
MARKUP = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 2</script></td></table><b>&amp;'
SCRIPTS = {
    "Chinese": ["苍鹭静静地站在水中等鱼。", "银行再次提高了利率。", "乐团排练了一部交响曲。"],
    "right to left": ["البلشون يقف ساكنا في الماء.", "הבנק העלה שוב את הריבית.", "mixed العربية and English"],
    "emoji": ["👩‍👧 🏳️‍🌈 🧀", "e\u0301 versus é", "🐟" * 40],
    "markup": [MARKUP, "${alert(1)} {{7*7}} <!-- -->", "'\"`; </script>\\u0000 \\"],
}


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def numbers(rows: Sequence[Sequence[str]]) -> Any:
    return np.array([[number(value) for value in row] for row in rows])


def compare(page: Browser, texts: Sequence[str]) -> None:
    """Write lines, and press the button."""
    page.write("#texts", "\n".join(texts))
    embed(page)


def embed(page: Browser) -> None:
    """Press the button, and wait for the answer."""
    page.click("#run")
    page.until("!document.getElementById('run').disabled")


def choose(page: Browser, field: str, value: str) -> None:
    """Choose an option of a list."""
    page.value(f"(document.getElementById({field!r}).value = {value!r})")
    page.value(f"document.getElementById({field!r}).dispatchEvent(new Event('change', {{ bubbles: true }}))")


def test_the_first_map_is_there_without_a_click(page: Browser, similarity: Callable[..., Any]) -> None:
    texts = page.value("document.getElementById('texts').value").split("\n")
    assert len(texts) == 6
    np.testing.assert_allclose(numbers(page.value(CELLS)), similarity("tiny", texts), atol=0.00501)
    model, *words = page.text("#try-done").split(" · ")
    assert model == "tiny"
    assert [one.split(" ", 1)[1] for one in words] == ["texts", "tokens", "dimensions", "ms round trip"]
    assert page.text("#served") == "4 models"
    assert page.value("document.title") == "Try – whiten"


@pytest.mark.parametrize("kind", SCRIPTS)
def test_texts_are_shown_as_they_are_and_run_nothing(page: Browser, similarity: Callable[..., Any], kind: str) -> None:
    texts = SCRIPTS[kind]
    compare(page, texts)
    assert page.value(LABELS) == texts
    np.testing.assert_allclose(numbers(page.value(CELLS)), similarity("tiny", texts), atol=0.00501)
    page.click("input[value=rank]")
    page.write("#query", texts[0])
    embed(page)
    assert len(page.value(RANKS)) == 3
    assert page.value("[window.hacked, document.images.length, document.scripts.length]") == [None, 0, 1]
    if kind == "right to left":
        heads = "[...document.querySelectorAll('#try-result td.text')].map((cell) => getComputedStyle(cell).direction)"
        assert "rtl" in page.value(heads)


@pytest.mark.parametrize("count", [1, 2, 50, 300])
def test_lines_are_compared_and_numbered_as_in_the_field(
    page: Browser, similarity: Callable[..., Any], count: int
) -> None:
    texts = [f"{place}: {text}" for place, text in enumerate(sentences(count))]
    compare(page, ["", *texts, "   "])  # lines without a text are left out
    want = similarity("tiny", texts)
    shown = min(count, 50)
    np.testing.assert_allclose(numbers(page.value(CELLS)), want[:shown, :shown], atol=0.00501)
    heads = page.value("[...document.querySelectorAll('.map thead th')].map((head) => head.innerText)")
    assert heads == [str(place + 2) for place in range(shown)]
    assert page.text(".map caption").endswith(
        "of the first 50 of 300 lines" if count == 300 else f"of {count} line{'s' * (count > 1)}"
    )
    rows = page.value(RANKS.replace("#try-result", ".list"))
    assert len(rows) == (8 if count > 2 else 0)
    if count > 2:
        others = want - 2 * np.eye(count)
        assert number(rows[0][0]) == pytest.approx(others.max(), abs=0.00501)
        means = (want.sum(axis=1) - 1) / (count - 1)
        assert number(rows[5][0]) == pytest.approx(means.min(), abs=0.00501)
        assert rows[5][1].split("\n")[0] == str(int(means.argmin()) + 2)


def test_a_text_of_100000_letters_is_shown_as_cut(page: Browser, tiny: Encoder) -> None:
    long = "abcde fghij " * 8_333 + "last"
    assert len(long) == 100_000
    compare(page, [*sentences(2), long])
    assert "1 text longer than the model reads (48 tokens)" in page.text("#try-result")
    tokens = tiny.tokens(long, special=False)
    assert f"Line 3: 46 of {len(tokens):,} tokens were read" in page.text("#try-result")
    stop = tokens[45].end
    kept, cut = page.value("[...document.querySelector('.excerpt').children].map((part) => part.textContent)")
    assert (kept, cut) == (long[stop - 90 : stop], long[stop : stop + 90])
    assert "With the first 10,000 characters" in page.text("#try-result")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


def test_ranking_and_prompts(page: Browser, bundles: dict[str, Path]) -> None:
    texts = sentences(60)
    choose(page, "model", "published")
    page.click("input[value=rank]")
    page.write("#query", texts[7])
    page.write("#texts", "\n".join(texts))
    chosen = "[document.getElementById('query-prompt'), document.getElementById('prompt')].map((field) => field.value)"
    assert page.value(chosen) == ["input_type query", "input_type document"]
    embed(page)
    with Encoder(bundles["published"]) as encoder:
        query = encoder.encode([texts[7]], prompt_name="query", normalize_embeddings=True)
        rows = encoder.encode(texts, prompt_name="document", normalize_embeddings=True)
    want = (rows @ query[0]).tolist()
    ranked = [(number(value), int(line) - 1) for _, value, _, line in page.value(RANKS)]
    assert sorted(line for _, line in ranked) == list(range(60))
    assert [value for value, _ in ranked] == pytest.approx([want[line] for _, line in ranked], abs=0.00501)
    assert [want[line] for _, line in ranked] == pytest.approx(sorted(want, reverse=True), abs=1e-6)


def test_what_belongs_to_another_choice_goes(page: Browser) -> None:
    """A result, its program and an error never stand below a form, or beside words, that did not give them."""
    for selector in ("input[value=rank]", "input[value=map]"):
        assert all(page.value(RESULT))
        page.click(selector)
        assert page.value(RESULT) == ["", ""]
        embed(page)
    choose(page, "model", "published")
    assert page.value(RESULT) == ["", ""]
    embed(page)
    assert all(page.value(RESULT))
    compare(page, [])
    assert page.text("#try-error")
    assert page.value(RESULT) == ["", ""]
    page.click("input[value=rank]")
    assert page.value("document.getElementById('try-error').hidden")
    page.write("#texts", "one")
    page.value("(document.getElementById('try-form').requestSubmit(), document.querySelector('[value=map]').click())")
    page.until("!document.getElementById('run').disabled")
    assert page.value(RESULT) == ["", ""]
    compare(page, ["a"] * 2049)
    assert "2048" in page.text("#try-error")
    compare(page, sentences(4))
    assert page.value("document.getElementById('try-error').hidden")
    assert all(page.value(RESULT))


@pytest.mark.parametrize(
    ("model", "widths"),
    [("tiny", ["16", "8"]), ("org/small@v1", ["8"]), ("published", []), ("matryoshka", ["8", "4"])],
)
def test_dimensions_are_those_that_the_model_allows(
    page: Browser, similarity: Callable[..., Any], model: str, widths: list[str]
) -> None:
    texts = sentences(4)
    page.write("#texts", "\n".join(texts))
    choose(page, "model", model)
    assert page.value(WIDTHS)[1:] == widths
    assert page.value("document.getElementById('dimensions-field').hidden") == (not widths)
    for width in widths:
        choose(page, "dimensions", width)
        embed(page)
        assert f"{width} dimensions" in page.text("#try-done")
        want = similarity(model, texts, truncate_dim=int(width))
        np.testing.assert_allclose(numbers(page.value(CELLS)), want, atol=0.00501)
        page.click("input[value=rank]")
        assert page.value("document.getElementById('dimensions').value") == width
        page.click("input[value=map]")


def test_the_keyboard_reaches_everything_and_every_control_has_a_name(page: Browser) -> None:
    reached = []
    page.value("document.body.focus()")
    for _ in range(16):
        page.press("Tab")
        reached.append(
            page.value("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)")
        )
    wanted = ["Skip to the content", "Try", "Models", "model", "texts", "dimensions", "run"]
    assert [one for one in reached if one in wanted] == wanted
    page.write("#texts", "one\ntwo")
    page.press("Enter", control=True)
    page.until("document.querySelectorAll('.map tbody tr').length === 2")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    controls = {"textbox", "button", "combobox", "radio", "checkbox", "link", "table", "image"}
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in controls]
    assert len(shown) > 12
    assert [node["role"]["value"] for node in shown if not node.get("name", {}).get("value")] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("stretched", [False, True])
def test_colours_can_be_read(page: Browser, scheme: str, stretched: bool) -> None:
    """Numbers of the map and words of the page have the contrast that WCAG asks for (AA)."""
    page.see(1280, 900, scheme)
    compare(page, sentences(12))
    if stretched:
        page.click(".legend input")
    for selector in (".map td", ".figures", ".hint", "nav a", "h1", ".list th", ".copy label", "pre", "#run", "footer"):
        assert page.value(f"({CONTRAST})({json.dumps(selector)})") >= 4.5, selector


CONTRAST = """(selector) => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = colour.map((one) => linear(one / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (element) => {
    const colour = rgba(getComputedStyle(element).backgroundColor);
    return colour[3] ? colour : ground(element.parentElement);
  };
  const all = [...document.querySelectorAll(selector)];
  return Math.min(...all.filter((one) => one.innerText.trim() && one.getClientRects().length).map((one) => {
    const both = [light(rgba(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => b - a);
    return (both[0] + 0.05) / (both[1] + 0.05);
  }));
}"""
