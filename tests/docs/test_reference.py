"""The pages of the reference say what docstrings and the help of commands say."""

import pytest

from support.reference import PAGES, api, commands, page

STALE = "it is stale: run python tests/support/reference.py"


def test_commands() -> None:
    assert page("commands.md", commands()) == (PAGES / "commands.md").read_text("utf-8"), STALE


@pytest.mark.slow
def test_api() -> None:
    pytest.importorskip("griffe2md", reason="needs the extra test-all")
    assert page("api.md", api()) == (PAGES / "api.md").read_text("utf-8"), STALE
