"""Compare every measured figure on the pages with the cell of a table that it was taken from.

`figures.tsv` lists them: a page; words of that page, with the figures in braces; a file; and a cell of the file for
each figure, with ` ; ` between the cells. A page may round a cell, and may say nothing else. A cell is one of

- `row > column` of a table: how the row begins, and the head of the column or `#` and its number, after ` >> ` below
  the first line that holds some words. `[2]` behind it is the second number in the cell;
- `"words {} words"`: the number in a sentence of the file.

Cells may be combined: `a ÷ b`, `a minus b`, and `a times 0.001` for another unit.
"""

import csv
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("figures.tsv")
NUMBER = re.compile(r"(?<![\w.,])-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:e-?\d+)?(?![\d.]*\w)")
BRACES = re.compile(r"\{([^}]*)\}")


class Entry(NamedTuple):
    """Figures of one sentence or row of a page, and where they come from."""

    page: str
    words: str  # with each figure in braces
    file: str
    cells: str  # one for each figure, separated by " ; "


def entries() -> list[Entry]:
    with LIST.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert tuple(head) == Entry._fields
    return [Entry(*row) for row in rows]


def value(figure: str) -> float:
    return float(figure.replace(",", ""))


def half_a_unit(figure: str) -> float:
    """Return half of the last digit of a figure: .05 of 1.5, 5e-8 of 2e-7."""
    digits, _, exponent = figure.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def computed(text: str, cells: str) -> float:
    """Return the value of a cell of a file, or of two that are combined."""
    if cells.startswith('"') and cells.endswith('"'):
        return sentence_of(text, cells[1:-1])
    for sign in ("times", "÷", "minus"):
        first, found, second = cells.partition(f" {sign} ")
        if found:
            left = computed(text, first)
            right = float(second) if sign == "times" else computed(text, second)
            return {"÷": left / right, "minus": left - right, "times": left * right}[sign]
    return cell_of(text, cells)


def sentence_of(text: str, words: str) -> float:
    """Return the number at the braces in words of a file."""
    before, after = map(re.escape, words.split("{}"))
    found = re.search(f"{before}({NUMBER.pattern}){after}", text)
    assert found, f"the file has no {words!r}"
    return value(found[1])


def cell_of(text: str, path: str) -> float:
    """Return a number of a cell of a table."""
    *section, place = path.split(" >> ")
    for words in section:
        _, found, text = text.partition(words)
        assert found, f"the file has no {words!r}"
    row, _, column = place.rpartition(" > ")
    column, _, number = column.removesuffix("]").partition("[")
    heads: list[str] = []
    for line in text.splitlines():
        columns = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = columns
        elif line.strip("|* ").startswith(row):
            index = int(column[1:]) - 1 if column.startswith("#") else heads.index(column)
            return value(NUMBER.findall(columns[index])[int(number or 1) - 1])
    raise AssertionError(f"the file has no row {row!r} of a table")


@pytest.mark.parametrize("page", sorted({entry.page for entry in entries()}))
def test_each_figure_is_its_cell(page: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    for entry in (entry for entry in entries() if entry.page == page):
        assert " ".join(BRACES.sub(r"\1", entry.words).split()) in text, (
            f"{page} does not say so; mend {LIST.name}, or the page"
        )
        figures, cells = BRACES.findall(entry.words), entry.cells.split(" ; ")
        assert len(figures) == len(cells), entry.words
        source = (ROOT / entry.file).read_text("utf-8")
        for figure, cell in zip(figures, cells, strict=True):
            measured = computed(source, cell)
            difference = abs(abs(value(figure)) - abs(measured))
            assert difference <= half_a_unit(figure) * 1.001, f"{figure} in {entry.words!r}: {cell} is {measured}"
