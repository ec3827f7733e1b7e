"""Leave these tests out where the packages of the extra `scale` are not installed; share inputs of every kind."""

import csv
import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.corpus import sentences

collect_ignore_glob = [] if all(map(find_spec, ("fsspec", "pyarrow"))) else ["test_*.py", "*/test_*.py"]

TEXTS = sentences(400)


def fill(folder: Path) -> Path:
    """Write 400 sentences into files of four kinds, with ids that differ from their places."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "topic"])
        rows.writerows([f"c{index}", f'{text},\n"said" he' if index % 3 else text, "news"] for index, text in part(0))
    lines = [json.dumps({"topic": "sport", "id": f"j{index}", "text": text}) for index, text in part(100)]
    (folder / "b.jsonl").write_text("\n\n".join(lines) + "\n", "utf-8")
    lines = ["id\ttext\ttopic", *(f't{index}\t{text} "\ttalk' for index, text in part(200))]
    (folder / "c.tsv").write_text("\r\n".join(lines), "utf-8")
    ids, texts = zip(*part(300), strict=True)
    table = {"id": [f"p{index}" for index in ids], "text": list(texts), "topic": ["film"] * 100}
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "d.parquet", row_group_size=30)
    return folder


@pytest.fixture
def texts_per_shard(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets how many texts a shard has at most, in jobs that are planned in this process."""
    return partial(monkeypatch.setattr, "whiten_scale.planner.PER_SHARD")


def part(start: int) -> list[tuple[int, str]]:
    """Return 100 sentences with their places."""
    return list(enumerate(TEXTS))[start : start + 100]


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 400 sentences in files of four kinds."""
    return fill(tmp_path_factory.mktemp("scale") / "in")
