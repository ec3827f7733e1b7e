"""Try: texts of every kind are compared and ranked as the runtime does it, by mouse and by keyboard."""

import json
from collections.abc import Callable, Sequence
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
MARKUP = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 2</script></td></table><b>&amp;'
SCRIPTS = {
    "Chinese": ["苍鹭静静地站在水中等鱼。", "银行再次提高了利率。", "乐团排练了一部交响曲。"],
    "right to left": ["البلشون يقف ساكنا في الماء.", "הבנק העלה שוב את הריבית.", "mixed العربية and English"],
    "emoji": ["👩‍👧 🏳️‍🌈 🧀", "e\u0301 versus é", "🐟" * 40],
    "markup": [MARKUP, "${alert(1)} {{7*7}} <!-- -->", "'\"`; </script>\\u0000 \\"],
}


def numbers(rows: Sequence[Sequence[str]]) -> Any:
    return np.array([[float(value.replace("−", "-")) for value in row] for row in rows])


def compare(page: Browser, texts: Sequence[str]) -> None:
    """Write lines, and press the button."""
    page.write("#texts", "\n".join(texts))
    embed(page)


def embed(page: Browser) -> None:
    """Press the button, and wait for the answer."""
    page.value("(document.getElementById('try-done').textContent = '')")
    page.click("#run")
    page.until("!document.getElementById('run').disabled")


def test_the_first_map_is_there_without_a_click(page: Browser, similarity: Callable[..., Any]) -> None:
    texts = page.value("document.getElementById('texts').value").split("\n")
    assert len(texts) == 6
    np.testing.assert_allclose(numbers(page.value(CELLS)), similarity("tiny", texts), atol=0.00501)
    words = page.text("#try-done").split(" · ")
    assert [one.split(" ", 1)[1] for one in words] == ["texts", "tokens", "ms", "dimensions"]
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
    assert page.value("document.querySelectorAll('#try-result tbody tr').length") == 3
    page.click(".tabs label:nth-of-type(3)")
    assert page.value("[window.hacked, document.images.length, document.scripts.length]") == [None, 0, 1]
    if kind == "right to left":
        heads = "[...document.querySelectorAll('#try-result td.text')].map((cell) => getComputedStyle(cell).direction)"
        assert "rtl" in page.value(heads)


@pytest.mark.parametrize("count", [1, 2, 24])
def test_few_lines_have_numbers(page: Browser, similarity: Callable[..., Any], count: int) -> None:
    texts = sentences(count)
    compare(page, ["", *texts, "   "])  # lines without a text are left out, and counted as the field shows them
    np.testing.assert_allclose(numbers(page.value(CELLS)), similarity("tiny", texts), atol=0.00501)
    heads = page.value("[...document.querySelectorAll('.map thead th')].map((head) => head.innerText)")
    assert heads == [str(number + 2) for number in range(count)]
    assert bool(page.text("#try-result .list")) == (count > 2)


@pytest.mark.parametrize("count", [50, 500])
def test_many_lines_are_a_picture_that_is_read_cell_by_cell(
    page: Browser, similarity: Callable[..., Any], count: int
) -> None:
    texts = [f"{number}: {text}" for number, text in enumerate(sentences(count))]
    compare(page, texts)
    want = similarity("tiny", texts)
    page.value("document.querySelector('canvas').focus()")
    for name in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.press(name)
    value, *about = page.text(".read").split("\n")
    assert float(value.replace("−", "-")) == pytest.approx(want[2, 1], abs=0.00501)
    assert [one for one in about if one] == ["3", texts[2][:160], "2", texts[1][:160]]
    size = "[document.querySelector('canvas').width, document.querySelector('canvas').height]"
    assert page.value(size) == [count, count]
    top = float(page.text("#try-result .list tbody th"))
    assert top == pytest.approx((want - 2 * np.eye(count)).max(), abs=0.00501)
    box = page.value("(({ x, y, width }) => [x, y, width])(document.querySelector('canvas').getBoundingClientRect())")
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] - 0.5, y=box[1] + 0.5)
    assert page.text(".read b") == f"{want[0, -1]:.2f}".replace("-", "−")


def test_a_text_of_100000_letters_is_shown_as_cut(page: Browser, tiny: Encoder) -> None:
    long = "abcde fghij " * 8_333 + "last"
    compare(page, [*sentences(2), long])
    assert len(long) == 100_000
    page.until("document.querySelector('.cuts')")
    assert "1 text longer than the model reads (48 tokens)" in page.text("#try-cut")
    total = len(tiny.tokens(long, special=False))
    assert page.text(".cuts p").startswith(f"Line 3: 46 of {total:,} tokens were read")
    stop = tiny.tokens(long, special=False)[45].end
    kept, cut = page.value("[...document.querySelector('.excerpt').children].map((part) => part.textContent)")
    assert (kept.removeprefix("…"), cut.removesuffix("…")) == (long[stop - 90 : stop], long[stop : stop + 90])
    assert "With the first 10,000 characters" in page.text("#try-code")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


def test_ranking_and_prompts(page: Browser, golden: Any) -> None:
    texts = sentences(60)
    page.value("document.getElementById('try-model').focus()")
    page.value("(document.getElementById('try-model').value = 'published')")
    page.value("document.getElementById('try-model').dispatchEvent(new Event('change', { bubbles: true }))")
    page.click("input[value=rank]")
    page.write("#query", texts[7])
    page.write("#texts", "\n".join(texts))
    chosen = "[document.getElementById('query-prompt'), document.getElementById('prompt')].map((field) => field.value)"
    assert page.value(chosen) == ["task:query", "task:document"]
    embed(page)
    with Encoder(golden / "bundle-v1-published") as encoder:
        query = encoder.encode([texts[7]], prompt_name="query", normalize_embeddings=True)
        rows = encoder.encode(texts, prompt_name="document", normalize_embeddings=True)
    want = (rows @ query[0]).tolist()
    cells = "(row) => [row.cells[1].innerText, Number(row.cells[3].innerText)]"
    ranked = f"[...document.querySelectorAll('#try-result tbody tr')].map({cells})"
    assert len(page.value(ranked)) == 50
    page.click("#try-result button")
    found = page.value(ranked)
    assert sorted(line for _, line in found) == list(range(1, 61))
    for value, line in found:
        assert float(value.replace("−", "-")) == pytest.approx(want[line - 1], abs=0.00501)
    values = [want[line - 1] for _, line in found]
    assert values == pytest.approx(sorted(want, reverse=True), abs=1e-6)


def test_dimensions_and_the_words_of_the_api(page: Browser, similarity: Callable[..., Any]) -> None:
    texts = sentences(4)
    page.write("#dimensions", "5")
    compare(page, texts)
    assert "5 dimensions" in page.text("#try-done")
    np.testing.assert_allclose(numbers(page.value(CELLS)), similarity("tiny", texts, truncate_dim=5), atol=0.00501)
    page.write("#dimensions", "9999")
    embed(page)
    assert page.text("#try-error").startswith("dimensions is 9999")
    page.write("#dimensions", "")
    compare(page, [])
    assert page.text("#try-error") == "There is no text. Write at least one line."
    compare(page, ["a"] * 2049)
    assert page.text("#try-error") == "input has 2049 texts; the limit is 2048: send several requests"
    compare(page, texts)
    assert page.value("document.getElementById('try-error').hidden")


def test_the_keyboard_reaches_everything_and_every_control_has_a_name(page: Browser) -> None:
    reached = []
    page.value("document.body.focus()")
    for _ in range(16):
        page.press("Tab")
        reached.append(
            page.value("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)")
        )
    wanted = ["Skip to the content", "Try", "Compare", "Models", "Now", "try-model", "texts", "dimensions", "run"]
    assert [one for one in reached if one in wanted] == wanted
    page.write("#texts", "one\ntwo")
    page.press("Enter", control=True)
    page.until("document.querySelectorAll('.map tbody tr').length === 2")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    controls = {"textbox", "button", "combobox", "spinbutton", "radio", "checkbox", "link", "table", "image"}
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in controls]
    assert len(shown) > 12
    assert [node["role"]["value"] for node in shown if not node.get("name", {}).get("value")] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("stretched", [False, True])
def test_colours_can_be_read(page: Browser, scheme: str, stretched: bool) -> None:
    """Numbers of the map and words of the page have the contrast that WCAG asks for (AA)."""
    page.see(1280, 900, scheme)
    if stretched:
        page.click(".legend input")
    for selector in (".map td", ".figures", ".hint", "nav a", "h1", ".list th", ".tabs label", "pre", "#run", "footer"):
        assert page.value(f"({CONTRAST})({json.dumps(selector)})") >= 4.5, selector


CONTRAST = """(selector) => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = colour.map((one) => linear(one / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (element) => {
    const colour = rgb(getComputedStyle(element).backgroundColor);
    return colour.length === 4 && colour[3] === 0 ? ground(element.parentElement) : colour.slice(0, 3);
  };
  const all = [...document.querySelectorAll(selector)];
  const seen = all.filter((one) => one.innerText.trim() && one.getClientRects().length);
  return Math.min(...seen.map((one) => {
    const both = [light(rgb(getComputedStyle(one).color).slice(0, 3)), light(ground(one))].sort((a, b) => b - a);
    return (both[0] + 0.05) / (both[1] + 0.05);
  }));
}"""
