"""Run the example of pgvector, where psql reaches a server (PGHOST, PGUSER and others of psql's own variables)."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import ok
from support.corpus import sentences

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "pgvector.sql"
QUERY = sentences(400)[123]
TABLES = re.findall(r"CREATE \w* ?TABLE (\w+)", EXAMPLE.read_text("utf-8"))


@pytest.fixture(scope="module")
def psql() -> list[str]:
    """Return the beginning of a command that runs SQL, in a transaction that is undone."""
    program = shutil.which("psql")
    if program is None:
        pytest.skip("psql is not here")
    command = [program, "--no-psqlrc"]
    available = "SELECT installed_version IS NOT NULL OR default_version >= '0.7' FROM pg_available_extensions"
    done = subprocess.run(
        [*command, "-Atc", f"{available} WHERE name = 'vector'"], capture_output=True, text=True, check=False
    )
    if done.returncode or done.stdout.strip() != "t":
        pytest.skip(f"psql reaches no server with pgvector 0.7: {done.stderr.strip()[:200] or 'it has no pgvector'}")
    return command


def test_tables_of_the_reader_are_never_touched() -> None:
    """Where there is no server, too: all tables are temporary, and no statement changes what it has not made."""
    lines = [line for line in EXAMPLE.read_text("utf-8").splitlines() if not line.startswith("--")]
    first = {" ".join(line.split()[:3]) for line in lines if line[:1].isupper()}
    assert len(TABLES) == 4
    assert first == {
        "CREATE EXTENSION IF",
        "CREATE TEMPORARY TABLE",
        "CREATE INDEX ON",
        "INSERT INTO floats",
        "INSERT INTO halves",
        "ANALYZE floats, halves;",
        *(line for line in first if line.startswith(("SELECT ", "FROM "))),
    }


def test_the_fifteen_lines_of_the_page(psql: list[str], tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg[binary]")
    page = (EXAMPLE.parents[1] / "docs" / "guides" / "search.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 15
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "minilm").symlink_to(tiny_bundle)
    code = code.replace("vector(384)", "vector(32)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(ast.literal_eval(done.stdout)) == 2


def test_a_sentence_finds_itself_as_vector_and_as_halfvec(
    psql: list[str], tiny_bundle: Path, corpus_file: Path, tmp_path: Path
) -> None:
    ok("embed", tiny_bundle, "--input", corpus_file, "--out", tmp_path / "vectors.jsonl")
    ok("embed", tiny_bundle, QUERY, "--out", tmp_path / "query.jsonl")
    mine = "".join(f"CREATE TABLE public.{table} AS SELECT 7 AS mine;\n" for table in TABLES)
    kept = "".join(f"SELECT '{table} kept ' || mine FROM public.{table};\n" for table in TABLES)
    (tmp_path / "undone.sql").write_text(f"BEGIN;\n{mine}\\i {EXAMPLE}\n{kept}ROLLBACK;\n")
    command = [*psql, "-v", "dim=32", "-f", "undone.sql"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [f"{table} kept 7" in done.stdout for table in TABLES] == [True] * len(TABLES)
    hits = [line.strip() for line in done.stdout.splitlines() if QUERY in line]
    assert len(hits) == 2
    assert all(hit.startswith("1.000 |") for hit in hits)
