"""Change one line of the product, and run the tests that have to fail then: `tests/mutants.toml` lists the changes.

`python -m support.mutants` in `tests/` tries all of them, or those whose numbers or files are named.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "mutants.toml"
PACKAGES = ("whiten", "evaluation", "export", "models", "runtime", "scale", "serving", "whitening")
_OPTIONS = ("-q", "-x", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--hypothesis-seed=0")
"""Options of pytest: one process, quick and slow tests, and the same drawn inputs each time."""

FAILED = 1
"""Exit code of pytest where tests fail; others say that tests were not there, or could not be run."""


@dataclass(frozen=True)
class Mutant:
    """One line of the product, what stands in its place, and the tests that fail then."""

    what: str
    file: str
    line: str
    replacement: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Change the line in a tree, and return the file's content before."""
        path = root / self.file
        before = path.read_text("utf-8")
        lines = before.splitlines(keepends=True)
        (index,) = self.places(before)
        blanks = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        lines[index] = f"{blanks}{self.replacement}\n"
        path.write_text("".join(lines), "utf-8")
        return before

    def places(self, content: str) -> list[int]:
        """Return the numbers of the lines, from 0 on, that are this mutant's."""
        return [index for index, line in enumerate(content.splitlines()) if line.strip() == self.line]


def read_mutants() -> list[Mutant]:
    """Read the table."""
    rows = tomllib.loads(TABLE.read_text("utf-8"))["mutant"]
    return [Mutant(**row | {"tests": tuple(row["tests"])}) for row in rows]


@contextmanager
def copied_tree(folder: Path) -> Iterator[Path]:
    """Copy the packages and the tests into a folder, for mutants."""
    root = folder / "tree"
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in (*PACKAGES, "tests", "docs", "examples", "clients", "benchmarks"):
        shutil.copytree(ROOT / name, root / name, ignore=unwanted, symlinks=True)
    for file in ("pyproject.toml", "README.md", "SECURITY.md", "CHANGELOG.md", "constraints.txt"):
        shutil.copy(ROOT / file, root / file)
    yield root
    shutil.rmtree(root, ignore_errors=True)


def survivors(mutant: Mutant, root: Path) -> list[str]:
    """Return the tests of a mutant, applied in a copied tree, that do not fail, each with the end of its output."""
    paths = [str(root), *(str(root / package) for package in PACKAGES if package != "whiten")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST", "WHITEN_TESTS_SHARED"):
        environment.pop(name, None)
    before = mutant.apply(root)
    try:
        left = []
        for test in mutant.tests:
            command = [sys.executable, "-m", "pytest", *_OPTIONS, test]
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != FAILED:
                left.append(f"{test}: exit code {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
        return left
    finally:
        (root / mutant.file).write_text(before, "utf-8")


def main(chosen: Sequence[str]) -> int:
    """Try mutants, print which live, and return their number."""
    import tempfile

    alive = 0
    with tempfile.TemporaryDirectory() as folder, copied_tree(Path(folder)) as root:
        for number, mutant in enumerate(read_mutants()):
            if chosen and str(number) not in chosen and mutant.file not in chosen:
                continue
            left = survivors(mutant, root)
            alive += bool(left)
            outcome = "LIVES" if left else "dies "
            print(f"{number:3} {outcome} {mutant.file}: {mutant.what}", *left, sep="\n    ", flush=True)
    return alive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
