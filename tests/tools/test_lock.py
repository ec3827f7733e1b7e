"""The locked requirements agree with pyproject.toml and constraints.txt, and a lock that does not is found out."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module
    spec.loader.exec_module(module)
    return module


lock = load()
CONSTRAINTS = {"click": "8.5.1", "numpy": "2.4.6"}
HASH = " \\\n    --hash=sha256:" + "0" * 64
WHOLE = f"# head\nclick==8.5.1{HASH}{HASH}\ncolorama==0.4.6 ; sys_platform == 'win32'{HASH}\nnumpy==2.4.6{HASH}\n"


def test_the_locks_of_this_project_agree() -> None:
    assert lock.check() == []


def test_a_whole_lock() -> None:
    found = lock.read_lock(WHOLE)
    assert [(one.name, one.version, one.everywhere, one.hashes) for one in found.values()] == [
        ("click", "8.5.1", True, 2),
        ("colorama", "0.4.6", False, 1),
        ("numpy", "2.4.6", True, 1),
    ]
    assert lock.problems(found, CONSTRAINTS, {"click", "numpy"}) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("click==8.5.1", "click==8.5.0", "click is 8.5.0, but constraints.txt has 8.5.1"),
        (f"numpy==2.4.6{HASH}", "numpy==2.4.6", "numpy has no hash"),
        (f"numpy==2.4.6{HASH}", "", "numpy is missing"),
        ("numpy==2.4.6", "evil==1\nnumpy==2.4.6", "evil has no hash"),
        ("numpy==2.4.6", f"evil==1{HASH}\nnumpy==2.4.6", "evil is not in constraints.txt"),
        (HASH, " \\\n    --hash=sha256:0", "click has no hash"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, problem: str) -> None:
    assert problem in lock.problems(lock.read_lock(WHOLE.replace(old, new)), CONSTRAINTS, {"click", "numpy"})


@pytest.mark.parametrize("line", ["numpy", "numpy>=2", "-e .", "numpy @ https://example.org/x.whl"])
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a package with one version"):
        lock.read_lock(f"{WHOLE}{line}\n")


def test_extras_of_extras_are_followed() -> None:
    project = {
        "project": {
            "dependencies": ["click>=8"],
            "optional-dependencies": {"a": ["whiten[b,c]"], "b": ["x"], "c": ["y>=1", "whiten[b]"], "d": ["z"]},
        }
    }
    assert lock.wanted(("a",), project) == {"click", "x", "y"}
