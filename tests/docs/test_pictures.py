"""The figures of docs/concepts that are drawn from no model are those that tools/site/pictures.py draws."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "site" / "pictures.py"
IMAGES = sorted((ROOT / "docs" / "images").glob("*.svg"))


def test_the_diagrams_are_current() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_other_arguments_are_refused() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--chek"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pictures.py --check" in done.stderr


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_figures_have_a_title_and_both_colour_schemes_and_load_nothing(image: Path) -> None:
    text = image.read_text("utf-8")
    root = ElementTree.fromstring(text)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert "prefers-color-scheme:dark" in text
    assert text.count("http") == 1  # the namespace


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_every_figure_is_on_a_page(image: Path) -> None:
    pages = (ROOT / "docs").rglob("*.md")
    assert any(f"images/{image.name}" in page.read_text("utf-8") for page in pages)
