"""The pages of the reference say what docstrings and help say, and the chart what the table says."""

import pytest

from support import long_chart
from support.chart import CHART, ENGINES, TABLE, draw, speeds
from support.reference import PAGES, api, commands, page

STALE = "it is stale: run python tests/support/reference.py"


def test_commands() -> None:
    assert page("commands.md", commands()) == (PAGES / "commands.md").read_text("utf-8"), STALE


@pytest.mark.slow
def test_api() -> None:
    pytest.importorskip("griffe2md", reason="needs the extra test-all")
    assert page("api.md", api()) == (PAGES / "api.md").read_text("utf-8"), STALE


def test_chart() -> None:
    table = TABLE.read_text("utf-8")
    assert speeds(table).keys() == ENGINES.keys()
    assert draw(table) == CHART.read_text("utf-8"), "it is stale: run python tests/support/chart.py"


def test_chart_of_long_texts() -> None:
    table = long_chart.TABLE.read_text("utf-8")
    figures = long_chart.figures(table)
    assert {network for network, _ in figures} == long_chart.NETWORKS.keys()
    assert all(engines.keys() == long_chart.ENGINES.keys() for engines in figures.values())
    assert long_chart.draw(table) == long_chart.CHART.read_text("utf-8"), "it is stale: see tests/support/long_chart.py"
