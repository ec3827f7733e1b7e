"""Write inputs of bulk jobs, run `whiten embed-many`, and read what it wrote."""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from click.testing import Result

from support.cli import MAIN

ROWS = 5000
"""Rows of each file of the input: more than a shard of a small job has."""

FILES = ("a.jsonl", "b.csv", "c.parquet")

MARK = "_SUCCESS"
"""Name of the file that marks a finished job."""


def ids_of(name: str, count: int = ROWS) -> list[str]:
    return [f"{name[0]}{number}" for number in range(count)]


def text_of(key: str) -> str:
    return f"the {key}"


def write_file(path: Path, ids: Sequence[str]) -> None:
    rows = [{"id": key, "text": text_of(key)} for key in ids]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ("id", "text"), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def options(bundle: Path, source: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("embed-many", bundle, "--input", source, "--out", out, "--id", "id", *more)


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("part-*.parquet"))


def rows(out: Path) -> Any:
    return pyarrow.concat_tables([pyarrow.parquet.read_table(path) for path in shards(out)])


def same_rows(out: Path, other: Path) -> bool:
    """Return whether two outputs have the same rows, in the same order."""
    return bool(rows(out).equals(rows(other)))


def process(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **more)


def check_refused(result: Result | subprocess.CompletedProcess[str], *names: object) -> None:
    """Check that a command has ended with an error in one line, which has these names."""
    code = result.exit_code if isinstance(result, Result) else result.returncode
    *_, last = result.stderr.splitlines()
    assert code in (1, 2), result.stderr
    assert last.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert all(str(name) in last for name in names), last
