"""Describe commands that write files, for the crash suite, and make their inputs and open their outputs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from support.corpus import sentences

DATA = Path(__file__).parents[1] / "data"
WINDOW = 8
"""Texts of a window in the crash suite, in place of 4,096."""


@dataclass(frozen=True)
class Scenario:
    """Describes one way to write files.

    Attributes:
        name: name of the command and its case.
        run: writes the output of a folder; ends with SystemExit as commands do.
        outputs: names of files and directories that must be whole at any time.
        opens: opens an output, as its reader does.
        prepare: makes the inputs and the old output.
        samples: number of calls at most that are tried, of a scenario whose runs take seconds; None for all.
        random: outputs whose bytes differ from run to run, so that a new one is known by its difference from the old.
        needs: module without which it cannot be run; "" for none.
        replaces: whether it replaces its own output; else it refuses to run again, with exit code 2.
        in_two_steps: whether the old output has a hidden name between two calls, until the same command puts it back.
    """

    name: str
    run: Callable[[Path], object]
    outputs: tuple[str, ...]
    opens: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None
    samples: int | None = None
    random: tuple[str, ...] = ()
    needs: str = ""
    replaces: bool = True
    in_two_steps: bool = False


def small_windows() -> None:
    """Make windows small and save after each of them, so that a short corpus has many states."""
    from whiten_export.corpus import fitting
    from whiten_runtime.files import pace
    from whiten_runtime.inference import batching

    schedule = batching.Schedule.on_cpu

    def on_cpu(cls: Any, *arguments: Any) -> Any:
        return replace(schedule(*arguments), window=WINDOW, first_window=WINDOW)

    batching.Schedule.on_cpu = classmethod(on_cpu)  # type: ignore[assignment]
    fitting.WINDOW = WINDOW
    pace.SECONDS, pace.SHARE = 0.0, 1e9


def whiten(*arguments: object) -> Callable[[Path], object]:
    """Return a function that runs `whiten` in a folder; FOLDER in an argument stands for it."""

    def run(folder: Path) -> object:
        from whiten_runtime.commands.main import whiten as command

        words = [str(part).replace("FOLDER", str(folder)) for part in arguments]
        return command.main(words, prog_name="whiten")

    return run


def make_inputs(folder: Path) -> None:
    """Texts and vectors to embed, fit and whiten."""
    (folder / "texts.txt").write_text("".join(f"{text} {n}\n" for n, text in enumerate(sentences(20))), "utf-8")
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 20)) @ generator.normal(size=(20, 20))
    np.save(folder / "rows.npy", rows.astype(np.float32))


def first(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    """Make the inputs, and then run what makes an old output."""

    def prepare(folder: Path) -> None:
        make_inputs(folder)
        for step in steps:
            try:
                step(folder)
            except SystemExit as end:
                assert not end.code, f"{step}: exit code {end.code}"

    return prepare


def opens_vectors(path: Path) -> None:
    """Read a file of vectors with its metadata."""
    from whiten_runtime.files.read_vectors import read_vectors
    from whiten_runtime.files.vector_metadata import read_metadata

    read_metadata(path)
    assert sum(map(len, read_vectors(path)))


def opens_bundle(path: Path) -> None:
    from whiten_runtime import Encoder, VectorWhitener
    from whiten_runtime.bundle.manifest import read_manifest

    opened = VectorWhitener if read_manifest(path).input == "vectors" else Encoder
    with opened(path) as encoder:
        encoder.manifest  # noqa: B018


def opens_statistics(path: Path) -> None:
    from whiten_export.corpus.statistics import load_statistics

    load_statistics(path)


def opens_json(path: Path) -> None:
    json.loads(path.read_bytes())


def opens_image(path: Path) -> None:
    assert path.read_bytes().startswith(b"<svg")
