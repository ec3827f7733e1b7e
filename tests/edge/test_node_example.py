"""Test examples/node."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.corpus import sentences
from whiten import Encoder

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "node" / "search.mjs"


@pytest.fixture
def program(workspace: Path) -> str:
    return str(shutil.copy(EXAMPLE, workspace))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_lines_are_ordered_as_in_python(program: str, golden: Path, tmp_path: Path) -> None:
    lines, question = sentences(30), "Who plays?"
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", "utf-8")
    done = run(program, golden / "bundle-v1", tmp_path / "lines.txt", question)
    assert done.returncode == 0, done.stderr
    with Encoder(golden / "bundle-v1") as encoder:
        scores = encoder.similarity(encoder.encode(question), encoder.encode(lines))[0]
    best = sorted(range(len(lines)), key=lambda index: -scores[index])[:5]
    assert done.stdout.splitlines() == [f"{scores[index]:.3f} {lines[index]}" for index in best]


def test_errors_are_one_line(program: str, tmp_path: Path) -> None:
    done = run(program, tmp_path, tmp_path / "lines.txt", "a")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "is not a whiten bundle" in done.stderr
    assert run(program).returncode == 2
