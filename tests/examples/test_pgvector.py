"""Run the example of pgvector, and the lines of the page, on a real PostgreSQL, started here in a new folder."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import ok
from support.corpus import sentences

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUERY = sentences(400)[123]
ROW = re.compile(r"^(\w+): (\d+) bytes a row, (\d+) in the index, .* ([\d.]+)% of the ten", re.MULTILINE)
HIT = re.compile(r"^  (-?[\d.]+)  (.+)$", re.MULTILINE)
AVAILABLE = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"


@pytest.fixture(scope="module")
def postgres() -> Iterator[dict[str, str]]:
    """Start a server that only this module reaches, and return the variables by which programs find it."""
    pytest.importorskip("psycopg", reason="needs psycopg[binary]")
    found = shutil.which("pg_ctl") or next(
        map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))[::-1]), None
    )
    if found is None:
        pytest.skip("PostgreSQL is not here (apt-get install postgresql)")
    programs = Path(found).resolve().parent
    # PostgreSQL refuses to run as root; a socket's path has at most 107 characters, which pytest's folders exceed.
    owner = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if owner:
        shutil.chown(folder, "postgres")
    ours = {"PGHOST": str(folder), "PGUSER": "tester", "PGDATABASE": "postgres"}
    data, options = str(folder / "data"), f"-k {folder} -c listen_addresses="
    control = [*owner, programs / "pg_ctl", "-D", data, "-w"]
    try:
        run([*owner, programs / "initdb", "-D", data, "-A", "trust", "-U", "tester"])
        run([*control, "-o", options, "-l", folder / "log", "start"])
        version = asked(ours, AVAILABLE)
        if tuple(map(int, str(version or "0.0").split(".")[:2])) < (0, 7):
            pytest.skip(f"pgvector 0.7 is not here, but {version or 'none'}")
        yield ours
    finally:
        subprocess.run([*map(str, control), "-m", "immediate", "stop"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def asked(postgres: dict[str, str], statement: str) -> Any:
    """Return the first value of what a statement gives; None if it gives nothing."""
    with connected(postgres) as db:
        rows = db.execute(statement)
        row = rows.fetchone() if rows.description else None
    return row and row[0]


def connected(postgres: dict[str, str]) -> Any:
    import psycopg

    return psycopg.connect(host=postgres["PGHOST"], user=postgres["PGUSER"], dbname=postgres["PGDATABASE"])


def run(command: list[object], variables: dict[str, str] | None = None, **options: Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=os.environ | (variables or {}),
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_fifteen_lines_of_the_page(postgres: dict[str, str], tiny_bundle: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "search.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 15
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "minilm").symlink_to(tiny_bundle)
    code = code.replace("vector(384)", "vector(32)")
    assert len(ast.literal_eval(run([sys.executable, "-c", code], postgres, cwd=tmp_path))) == 2


def test_files_of_embed_many_become_a_table_of_the_page(
    postgres: dict[str, str], tiny_bundle: Path, tmp_path: Path
) -> None:
    """Every row that the filter takes is found, however few they are; the vectors are those of the files."""
    page = (ROOT / "docs" / "guides" / "search.md").read_text("utf-8")
    code = page.partition("### Files of embed-many")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "minilm").symlink_to(tiny_bundle)
    rows = [
        {"id": f"0{number}", "title": "A\t\\N" if number % 100 == 0 else "the", "text": text}
        for number, text in enumerate(sentences(400))
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    options = ("--id", "id", "--keep", "title", "--vector-type", "float16", "--out", tmp_path / "vectors")
    ok("embed-many", tiny_bundle, "--input", tmp_path / "in.jsonl", *options)
    found = ast.literal_eval(
        run([sys.executable, "-c", code.replace("halfvec(384)", "halfvec(32)")], postgres, cwd=tmp_path)
    )
    assert sorted(found) == [("00", "A\t\\N"), ("0100", "A\t\\N"), ("0200", "A\t\\N"), ("0300", "A\t\\N")]
    assert asked(postgres, "SELECT count(*) FROM documents") == 400


@pytest.fixture(scope="module")
def printed(postgres: dict[str, str], tiny_bundle: Path, corpus_file: Path) -> str:
    """Run the example where tables and rows of its names are there already, and return what it printed."""
    asked(postgres, "CREATE TABLE sentences AS SELECT 7 AS mine")
    example = [sys.executable, ROOT / "examples" / "pgvector_search.py"]
    output = run([*example, tiny_bundle, QUERY, "--texts", corpus_file, "--bytes", "16"], postgres)
    assert asked(postgres, "SELECT mine FROM sentences") == 7
    return output


def test_a_sentence_finds_itself_by_every_column(printed: str) -> None:
    assert "stored 400 sentences" in printed
    hits = HIT.findall(printed)
    assert len(hits) == 12
    for distance, text in hits[::3]:
        assert text == QUERY
        assert float(distance) == pytest.approx(0, abs=0.02)


def test_bytes_and_shares_of_every_column(printed: str) -> None:
    """Four bytes a number, two, a bit; 16 bytes of codes. Each has a header of one to nine."""
    rows = {name: (int(size), float(share)) for name, size, _, share in ROW.findall(printed)}
    assert list(rows) == ["vector", "halfvec", "bit", "codes"]
    numbers = {"vector": 4 * 32, "halfvec": 2 * 32, "bit": 32 // 8, "codes": 16}
    assert [name for name, size in numbers.items() if not 0 < rows[name][0] - size < 10] == []
    assert rows["vector"][1] > 95
    assert rows["halfvec"][1] > 95
    assert rows["codes"][1] > rows["bit"][1]


def test_codes_are_the_coders_own(postgres: dict[str, str], tiny_bundle: Path) -> None:
    """What COPY stores comes back byte by byte, and the nearest by codes are those of `Coder.search` among them all."""
    from examples.pgvector_search import by_codes, digits, store
    from whiten import Coder, Encoder

    coder = Coder.of(tiny_bundle, 16)
    with Encoder(tiny_bundle) as encoder:
        vectors = encoder.encode(sentences(60))
        signs = encoder.encode(sentences(60), precision="ubinary")  # which are those of `digits`
    codes = coder.encode_array(vectors)
    with connected(postgres) as db:
        store(db, vectors, codes)
        for row, code in db.execute("SELECT id, codes FROM sentences"):
            assert bytes(code) == codes[row].tobytes()
        for row, bits in db.execute('SELECT id, "bit"::text FROM sentences'):
            assert bits == digits(vectors[row]) == "".join(map(str, np.unpackbits(signs[row])))
        best = [row for row, _ in by_codes(db, coder, vectors[7])]
    assert best == coder.search(vectors[7:8], codes, k=10).rows[0].tolist()
