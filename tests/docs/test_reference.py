"""The pages of the reference say what docstrings and help say, and the pictures what tables and pages say."""

import pytest

from support.charts import IMAGES, ROOT, pictures
from support.charts.speed import ENGINES, speeds
from support.reference import PAGES, api, commands, page

STALE = "it is stale: run python tests/support/reference.py"


def test_commands() -> None:
    assert page("commands.md", commands()) == (PAGES / "commands.md").read_text("utf-8"), STALE


@pytest.mark.slow
def test_api() -> None:
    pytest.importorskip("griffe2md", reason="needs the extra test-all")
    assert page("api.md", api()) == (PAGES / "api.md").read_text("utf-8"), STALE


def test_every_engine_is_in_the_chart() -> None:
    assert speeds((ROOT / "benchmarks" / "peers" / "table.md").read_text("utf-8")).keys() == ENGINES.keys()


@pytest.mark.parametrize("name", pictures())
def test_pictures(name: str) -> None:
    stale = "it is stale: run python -m support.charts in tests/"
    assert pictures()[name] == (IMAGES / name).read_text("utf-8"), stale
