"""Test that important lines are guarded: each mutant of tests/mutants.toml makes the tests that it names fail.

A dozen are tried each day, and all with `pytest -m slow tests/tools/test_mutants.py --mutants all`.
"""

import ast
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.mutants import ROOT, Mutant, copied_tree, read_mutants, survivors

DAILY = 12

MUTANTS = read_mutants()


def chosen(config: pytest.Config) -> list[int]:
    """Return the numbers of the mutants to try: all, or those of the day."""
    numbers = list(range(len(MUTANTS)))
    if config.getoption("--mutants") == "all":
        return numbers
    return sorted(random.Random(datetime.now(UTC).date().toordinal()).sample(numbers, DAILY))


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    machines = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {name for name in machines if name.startswith("Test")}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_is_one_line_of_today_and_names_tests_of_today(mutant: Mutant) -> None:
    assert len(mutant.places((ROOT / mutant.file).read_text("utf-8"))) == 1
    assert mutant.replacement.strip() != mutant.line
    for test in mutant.tests:
        file, *names = test.partition("[")[0].split("::")
        assert set(names) <= functions_of(ROOT / file), test
        assert names


def test_the_table_guards_every_package() -> None:
    assert len(MUTANTS) >= 60
    packages = {mutant.file.split("/")[0] for mutant in MUTANTS}
    assert packages >= {"evaluation", "export", "runtime", "scale", "serving", "whiten", "whitening"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with copied_tree(tmp_path_factory.mktemp("mutants")) as root:
        yield root


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Number the mutants that are tried; which they are is decided when they are."""
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", range(len(chosen(metafunc.config))))


@pytest.mark.slow
def test_a_mutant_dies(place: int, tree: Path, pytestconfig: pytest.Config) -> None:
    mutant = MUTANTS[chosen(pytestconfig)[place]]
    assert survivors(mutant, tree) == [], mutant.what
