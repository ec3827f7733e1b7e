"""docs/guides/http.md: the examples work, and the tables are complete."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.asgi import asked
from whiten_serving.http.app import ENDPOINTS
from whiten_serving.http.errors import PROBLEMS

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
GUIDE = (GUIDES / "http.md").read_text("utf-8")
CALLS = [line for line in GUIDE.splitlines() if line.startswith("curl ")]


@pytest.mark.parametrize("line", CALLS)
def test_examples(app: Any, line: str) -> None:
    words = shlex.split(line)
    path = words[2].removeprefix("localhost:8080")
    body = words[words.index("-d") + 1].encode() if "-d" in words else None
    answer = asked(app, "GET" if body is None else "POST", path, body)
    assert answer.status == 200, answer.body


def test_every_error_is_listed_with_its_statuses() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| (\d+)(?:; TEI (\d+))? \| (\w+) \|", GUIDE, re.MULTILINE)
    listed = {code.strip("` "): row for (*row,) in rows for code in row[0].split(",")}
    assert set(listed) == set(PROBLEMS)
    for code, (_, status, tei, kind) in listed.items():
        problem = PROBLEMS[code]
        assert (int(status), int(tei or 0), kind) == (problem.status, problem.tei_status, problem.tei), code


def test_every_route_is_listed() -> None:
    words = set(re.findall(r"[^\s`|,;()]+", GUIDE))
    assert {re.sub(r"\{\w+\}", "MODEL", route.path) for route in ENDPOINTS} - words == set()


def test_every_metric_is_listed(app: Any) -> None:
    page = asked(app, "GET", "/metrics").body.decode()
    names = {name for name in re.findall(r"^# TYPE (whiten_\w+)", page, re.MULTILINE) if not name.endswith("_created")}
    assert names == set(re.findall(r"`(whiten_\w+)`", GUIDE.partition("## Metrics")[2]))
