"""Write requirements with hashes from pyproject.toml and constraints.txt: requirements/*.lock, by uv.

    python tools/lock.py            # writes them; needs uv (pip install uv) and the package index
    python tools/lock.py --check    # compares them with pyproject.toml and constraints.txt, offline

`pip install --require-hashes -r requirements/runtime.lock` then takes no other file than those of the lock. Locks hold
for all systems, and for Python 3.11 and later. torch is in none: its builds for CPUs and GPUs come from other indexes.
"""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = "whiten"

LOCKS = {"runtime": (), "sign": ("sign",), "export-onnx": ("export-onnx",)}
"""Extras of each lock, besides the runtime's own dependencies."""

_ENTRY = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^ ;]+)(?P<marker> ;.*?)?(?P<hashes>(?: +--hash=\S+)*) *")
_NAME = re.compile(r"^[\w.-]+")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}(?= |$)")


@dataclass(frozen=True)
class Entry:
    """Describes a package of a lock."""

    name: str
    version: str
    everywhere: bool
    hashes: int


def canonical(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> dict[str, Entry]:
    """Return the packages of a lock by name.

    Raises:
        ValueError: a line is no package with one version.
    """
    found = {}
    for line in text.replace(" \\\n", " ").splitlines():
        if not line or line.startswith("#"):
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ValueError(f"not a package with one version: {line[:60]!r}")
        name = canonical(match["name"])
        found[name] = Entry(name, match["version"], not match["marker"], len(_HASH.findall(match["hashes"])))
    return found


def read_constraints(text: str) -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    pairs = (line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pairs}


def wanted(extras: tuple[str, ...], project: dict[str, object]) -> set[str]:
    """Return the names of packages that the project asks for with these extras, itself left out."""
    table = project["project"]
    assert isinstance(table, dict)
    options = table["optional-dependencies"]
    names, todo, seen = set(), list(table["dependencies"]), set()
    todo += [requirement for extra in extras for requirement in options[extra]]
    while todo:
        requirement = todo.pop()
        name = canonical(_NAME.match(requirement)[0])
        if name != PROJECT:
            names.add(name)
            continue
        for extra in re.search(r"\[(.*)\]", requirement)[1].split(","):
            if extra not in seen:
                seen.add(extra)
                todo += options[extra]
    return names


def problems(lock: dict[str, Entry], constraints: dict[str, str], names: set[str]) -> list[str]:
    """Return what is wrong with a lock: one line each."""
    found = [f"{name} is missing" for name in sorted(names - lock.keys())]
    for entry in lock.values():
        pinned = constraints.get(entry.name)
        if not entry.hashes:
            found.append(f"{entry.name} has no hash")
        if pinned is None and entry.everywhere:
            found.append(f"{entry.name} is not in constraints.txt")
        if pinned is not None and pinned != entry.version:
            found.append(f"{entry.name} is {entry.version}, but constraints.txt has {pinned}")
    return found


def check() -> list[str]:
    """Return what is wrong with the locks of this checkout."""
    constraints = read_constraints(CONSTRAINTS.read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = []
    for name, extras in LOCKS.items():
        path = FOLDER / f"{name}.lock"
        lock = read_lock(path.read_text("utf-8")) if path.is_file() else {}
        found += [f"{path.name}: {problem}" for problem in problems(lock, constraints, wanted(extras, project))]
    return found


def write() -> None:
    """Write all locks."""
    FOLDER.mkdir(exist_ok=True)
    for name, extras in LOCKS.items():
        command = [
            "uv",
            "pip",
            "compile",
            "pyproject.toml",
            "-c",
            "constraints.txt",
            "--generate-hashes",
            "--universal",
        ]
        command += ["--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
        command += [part for extra in extras for part in ("--extra", extra)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        asked = "".join(f" [{extra}]" for extra in extras)
        head = f"# Written by tools/lock.py from pyproject.toml{asked} and constraints.txt.\n"
        (FOLDER / f"{name}.lock").write_text(head + done.stdout, "utf-8")


def main() -> int:
    """Write or check the locks; return the exit code."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not sys.argv[1:]:
        try:
            write()
        except FileNotFoundError:
            print("error: uv is not installed; pip install uv", file=sys.stderr)
            return 1
        except subprocess.CalledProcessError as error:
            return error.returncode
    found = check()
    for problem in found:
        print(f"error: {problem}; run python tools/lock.py", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
