"""Open mutants of a bundle, and write what becomes of each: run as a process of its own, which a mutant may kill.

Arguments: the bundle, another bundle, a folder for the mutants, and their numbers: first, last + 1, step. Writes a line
of JSON before each mutant, and one after it.
"""

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from support.mutants import Mutant, mutant, read_files
from whiten_runtime import Encoder
from whiten_runtime.bundle.client_files import changed_client_files
from whiten_runtime.bundle.parity import gate_of
from whiten_runtime.errors import WhitenError

TEXTS = ["", "a text", "another text, " * 3, "the words of a long text go on " * 40]
MOST_MEMORY = 12 << 30
CLOSE = 1e-4
"""Largest difference of a coordinate, relative to the norm, of vectors that count as equal: the gate's bound."""


def main(bundle: Path, other: Path, folder: Path, first: int, end: int, step: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files, others = read_files(bundle), read_files(other)
    wanted = computed(bundle)[0]
    for number in range(first, end, step):
        made = mutant(files, others, number)
        write(bundle, folder, made)
        print(json.dumps({"number": number}), flush=True)
        started = time.monotonic()
        verdict, why = judge(folder, wanted)
        seconds = time.monotonic() - started
        what = {"kind": made.kind, "file": made.file, "what": made.what, "rehashed": made.rehashed}
        print(json.dumps({"number": number, "verdict": verdict, "why": why, "seconds": seconds, **what}), flush=True)


def write(bundle: Path, folder: Path, made: Mutant) -> None:
    """Write a mutant: links to the bundle's files, but for those that were changed."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in bundle.rglob("*"):
        target = folder / path.relative_to(bundle)
        name = path.relative_to(bundle).as_posix()
        if path.is_dir() or name in made.changed:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    for name, content in made.changed.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def computed(path: Path) -> tuple[np.ndarray, bool, list[str]]:
    """Return vectors of texts and the ranges of their coordinates, whether verify passes, and changed client files."""
    with Encoder(path, threads=1) as encoder:
        vectors, ranges = encoder.encode(TEXTS), encoder.ranges()
        passed = gate_of(encoder.manifest.precision, encoder.manifest.vectors).passes(encoder.verify())
        changed = changed_client_files(path, encoder.manifest.files)
    return np.concatenate([vectors, ranges]), passed, changed


def judge(path: Path, wanted: np.ndarray) -> tuple[str, str]:
    """Return what becomes of a mutant, and why."""
    try:
        got, passed, _ = computed(path)
    except WhitenError as error:
        return ("refused" if "\n" not in str(error) else "untyped"), f"{type(error).__name__}: {str(error)[:300]}"
    except BaseException as error:
        return "untyped", f"{type(error).__name__}: {str(error)[:300]}"
    same = got.shape == wanted.shape and equal(got, wanted)
    return f"{'equal' if same else 'other'}, {'passes' if passed else 'fails'}", ""


def equal(got: np.ndarray, wanted: np.ndarray) -> bool:
    norms = np.linalg.norm(wanted, axis=1)
    return bool(np.isfinite(got).all() and (np.abs(got - wanted).max(axis=1) <= CLOSE * norms).all())


if __name__ == "__main__":
    arguments: list[Any] = [*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:])]
    main(*arguments)
