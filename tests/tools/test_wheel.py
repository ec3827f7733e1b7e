"""The wheel and the source distribution of one commit have the same bytes wherever and whenever they are built."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from support.once import once

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
NOTICE = "runtime/whiten_runtime/files/english-1.NOTICE"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist", ROOT / "tools" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dist = load()


def copy_tree(target: Path, umask: int, when: int) -> Path:
    """Copy the files of the project, with modes and times of their own."""
    ignored = shutil.ignore_patterns(
        "__pycache__", "*.pyc", "node_modules", "bundles", "dist", "build", ".*_cache", ".venv*", ".git"
    )
    shutil.copytree(ROOT, target, ignore=ignored)
    for path in target.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (when, when))
    return target


def run(*command: str, umask: int = 0o022, cwd: Path | None = None, path: Path | None = None) -> None:
    """Run Python, and skip where the package index is out of reach."""
    environment = {name: value for name, value in os.environ.items() if name not in ("SOURCE_DATE_EPOCH", "PYTHONPATH")}
    environment |= {"PIP_CONSTRAINT": str(CONSTRAINTS)} | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(
        [sys.executable, *command], env=environment, umask=umask, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode and "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("the package index is out of reach, and the build needs hatchling")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with hatchling."""

    def install(folder: Path) -> None:
        run("-m", "pip", "install", "-q", "--target", str(folder), "hatchling")

    return once(tmp_path_factory, "hatchling", install)


def build(source: Path, backend: Path, umask: int = 0o022) -> Path:
    """Build both distributions of a tree; return their folder."""
    run("-m", "hatchling", "build", umask=umask, cwd=source, path=backend)
    return source / "dist"


@pytest.fixture(scope="module")
def built(backend: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        build(copy_tree(folder, 0o022, 1_500_000_000), backend)

    return once(tmp_path_factory, "distributions", make) / "dist"


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_another_umask_time_and_folder_give_the_same_bytes(built: Path, backend: Path, tmp_path: Path) -> None:
    other = build(copy_tree(tmp_path / "a" / "nother", 0o077, 1_700_000_001), backend, 0o077)
    assert contents(other) == contents(built)


def test_the_source_distribution_builds_both_again(built: Path, backend: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    assert contents(build(tree, backend)) == contents(built)


def test_pip_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    source = str(only(built, "*.tar.gz"))
    run("-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", str(tmp_path), source)
    assert only(tmp_path, "*.whl").read_bytes() == only(built, "*.whl").read_bytes()


def test_both_hold_what_they_should(built: Path) -> None:
    assert dist.wheel_problems(only(built, "*.whl")) == []
    assert dist.sdist_problems(only(built, "*.tar.gz")) == []
    names = zipfile.ZipFile(only(built, "*.whl")).namelist()
    assert "whiten_runtime/signing/sign.py" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def rewrite(wheel: Path, out: Path, drop: str = "", add: str = "", old: bytes = b"", new: bytes = b"") -> Path:
    """Copy a wheel without a file, with another one, or with other bytes."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(out / wheel.name, "w") as target:
        for name in source.namelist():
            if name != drop:
                target.writestr(name, source.read(name).replace(old, new) if old else source.read(name))
        if add:
            target.writestr(add, "")
    return out / wheel.name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"add": "tests/test_x.py"}, "tests/test_x.py is no file of a package"),
        ({"add": "whiten/__pycache__/x.pyc"}, "whiten/__pycache__/x.pyc is unwanted"),
        ({"drop": "whiten_serving/py.typed"}, "whiten_serving/py.typed is missing"),
        ({"drop": "whiten_models/catalogue.toml"}, "whiten_models/catalogue.toml is missing"),
        ({"drop": "{head}/licenses/LICENSE"}, "{head}/licenses/LICENSE is missing"),
        ({"drop": "{head}/licenses/" + NOTICE}, "{head}/licenses/" + NOTICE + " is missing"),
        ({"drop": "{head}/entry_points.txt"}, "the command whiten is missing"),
        ({"old": b"Requires-Python: >=3.11", "new": b"Requires-Python: >=3.9"}, "Requires-Python is >=3.9"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_named(built: Path, tmp_path: Path, change: dict[str, str], problem: str) -> None:
    wheel = only(built, "*.whl")
    head = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"
    filled = {name: value.format(head=head) if isinstance(value, str) else value for name, value in change.items()}
    found = dist.wheel_problems(rewrite(wheel, tmp_path, **filled))
    assert any(line.startswith(problem.format(head=head)) for line in found), found


def test_what_is_wrong_with_a_source_distribution_is_named(built: Path, tmp_path: Path) -> None:
    whole = only(built, "*.tar.gz")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"")
    with tarfile.open(whole) as source, tarfile.open(tmp_path / whole.name, "w:gz") as target:
        top = source.getnames()[0].split("/")[0]
        for member in source.getmembers():
            if member.name not in (f"{top}/LICENSE", f"{top}/whiten/py.typed"):
                target.addfile(member, source.extractfile(member))
        target.add(tmp_path / "__pycache__" / "x.pyc", f"{top}/tests/__pycache__/x.pyc")
        target.add(CONSTRAINTS, "elsewhere/constraints.txt")
    assert dist.sdist_problems(tmp_path / whole.name) == [
        f"elsewhere/constraints.txt is outside {top}",
        "LICENSE is missing",
        "whiten/py.typed is missing",
        "tests/__pycache__/x.pyc is unwanted",
    ]


def test_a_folder_without_distributions_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "dist.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"error: {tmp_path} has 0 files *.whl; wanted one" in done.stderr
