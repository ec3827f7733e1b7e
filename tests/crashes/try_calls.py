"""Run the crash suite: `python tests/crashes/try_calls.py [--stride N] [--kills-only | --errors-only] [NAME ...]`.

For each scenario, kill the process at its first, second, ... call that changes a file, or let the call fail; then look
whether every output is the old one or the new one, whether it opens, and whether the same command again gives the bytes
of an uninterrupted one and leaves no other file behind.
"""

import errno
import hashlib
import importlib
import importlib.util
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from crashes.children import run_in_child
from crashes.scenario import Scenario, small_windows
from crashes.scenarios import SCENARIOS
from support.faults import Faults

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EIO)

Content = dict[str, str]


@dataclass
class Tally:
    """Counts what was tried of a scenario.

    Attributes:
        name: name of the scenario.
        calls: number of calls that change files in one run.
        kills: number of runs that were killed.
        whole: outputs found whole after a kill or an error, absent ones included.
        failures: number of runs in which a call failed.
        reported: runs of those that ended with exit code 1 and one line that names the file; the others succeeded.
        problems: what was found wrong.
    """

    name: str
    calls: int = 0
    kills: int = 0
    whole: int = 0
    failures: int = 0
    reported: int = 0
    problems: list[str] = field(default_factory=list)


def content_of(folder: Path) -> Content:
    """Return the SHA-256 of every file of a folder, by its name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return found | {f"{path.relative_to(folder)}/": "" for path in folder.rglob("*") if path.is_dir()}


def part_of(content: Content, output: str) -> Content:
    return {name: digest for name, digest in content.items() if name == output or name.startswith(f"{output}/")}


class Trial:
    """Holds a scenario in a folder, with its content before and after an uninterrupted run."""

    def __init__(self, scenario: Scenario, base: Path) -> None:
        self.scenario, self.folder, self.log = scenario, base / "work", base / "log"
        self._pristine = base / "pristine"
        self._pristine.mkdir()
        prepared = Scenario(scenario.name, scenario.prepare, (), scenario.opens)
        self.folder.mkdir()
        code = run_in_child(prepared, self.folder, None, self.log)
        assert code == 0, self.log.read_text()
        shutil.copytree(self.folder, self._pristine, dirs_exist_ok=True)
        self.old = content_of(self.folder)
        code = run_in_child(scenario, self.folder, Faults(self.folder), self.log)
        assert code == 0, self.log.read_text()
        text = self.log.read_text()
        self.calls = text[text.index("\ncalls:\n") + 8 :].splitlines()
        self.new = self._content()
        self.reset()
        code = run_in_child(scenario, self.folder, None, self.log)
        assert (code, self._content()) == (0, self.new), f"{scenario.name}: two runs give other bytes"

    def _content(self) -> Content:
        """Return the content of the folder, in which new outputs that differ from run to run are all alike."""
        found = content_of(self.folder)
        return {
            name: "new" if name in self.scenario.random and digest != self.old.get(name) else digest
            for name, digest in found.items()
        }

    def reset(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._pristine, self.folder)

    def attempt(self, at: int, error: int | None, lasting: bool, tally: Tally) -> None:
        """Run with a fault at one call, and look at what is left."""
        self.reset()
        code = run_in_child(self.scenario, self.folder, Faults(self.folder, at, error, lasting), self.log)
        text = self.log.read_text(errors="replace")
        how = "killed" if error is None else f"{errno.errorcode[error]}{' from there on' if lasting else ''}"
        where = f"{self.scenario.name}: {how} at call {at} ({self.calls[at - 1] if at <= len(self.calls) else '?'})"
        if error is None:
            tally.kills += 1
            if code != -signal.SIGKILL:
                tally.problems.append(f"{where}: ended with {code}")
        else:
            tally.failures += 1
            if code not in (0, 1):
                tally.problems.append(f"{where}: ended with {code}: {text[-1500:]}")
            if code == 1:
                self._check_line(text, where, tally)
            if code == 0 and self._content().items() < self.new.items():
                tally.problems.append(f"{where}: exit code 0, but the output is not the new one")
        self._check_outputs(where, tally)
        self._run_again(where, tally)

    def _run_again(self, where: str, tally: Tally) -> None:
        """Check that the same command again gives the bytes of an uninterrupted run, and leaves no other file behind.

        A command that has written its output, and does not replace it, refuses once: then its output is removed.
        """
        again = f"{where}: the same command again"
        if not self.scenario.replaces and self._is_new():
            code = run_in_child(self.scenario, self.folder, None, self.log)
            if code != 2 or not self._is_new():
                tally.problems.append(f"{again} ended with {code}, and was to refuse: {self.log.read_text()[-600:]}")
            for output in self.scenario.outputs:
                shutil.rmtree(self.folder / output)
        code = run_in_child(self.scenario, self.folder, None, self.log)
        if code:
            tally.problems.append(f"{again} ended with {code}: {self.log.read_text()[-600:]}")
        elif (found := self._content()) != self.new:
            names = sorted({name for name, _ in found.items() ^ self.new.items()})
            tally.problems.append(f"{again} made other files: {names}")

    def _is_new(self) -> bool:
        """Return whether all outputs are the new ones."""
        now = self._content()
        return all(part_of(now, output) == part_of(self.new, output) for output in self.scenario.outputs)

    def _check_line(self, text: str, where: str, tally: Tally) -> None:
        lines = [line for line in text.splitlines() if "error:" in line]
        tally.reported += 1
        good = len(lines) == 1 and str(self.folder) in lines[0] and "cannot be written" in lines[0] and ";" in lines[0]
        if not good or ".partial-" in lines[0] or "Traceback" in text:
            tally.problems.append(f"{where}: not one line that names the file: {text[-600:]}")

    def _check_outputs(self, where: str, tally: Tally) -> None:
        now = self._content()
        for output in self.scenario.outputs:
            found = part_of(now, output)
            known = (part_of(self.old, output), part_of(self.new, output))
            if output == "store":  # it is filled in place, and says how far it is whole
                known = (*known, found)
            if found == {} and self.scenario.in_two_steps and self._is_put_aside(output, now):
                known = (*known, found)
            if found not in known:
                tally.problems.append(f"{where}: {output} is neither the old nor the new one: {sorted(found)}")
                continue
            tally.whole += 1
            if found:
                try:
                    self.scenario.opens(self.folder / output)
                except Exception as error:
                    tally.problems.append(f"{where}: {output} does not open: {type(error).__name__}: {error}")
            self._check_sidecar(output, found == known[0], now, where, tally)

    def _is_put_aside(self, output: str, now: Content) -> bool:
        """Return whether the old output is whole under a hidden name."""
        hidden = [name.rstrip("/") for name in now if fnmatch(name, f".{output}.replaced-????????/")]
        old = part_of(self.old, output)
        return len(hidden) == 1 and part_of(now, hidden[0]) == {
            f"{hidden[0]}{name.removeprefix(output)}": digest for name, digest in old.items()
        }

    def _check_sidecar(self, output: str, is_old: bool, now: Content, where: str, tally: Tally) -> None:
        """Check that no metadata of other vectors stands beside a .npy file."""
        sidecar = f"{output}.json"
        if output.endswith(".npy") and sidecar in now and self.old.get(output) != self.new.get(output):
            other = (self.new if is_old else self.old).get(sidecar)
            if now[sidecar] == other:
                tally.problems.append(f"{where}: {sidecar} is of other vectors")


def sampled(points: Sequence[int], count: int | None, seed: int) -> Sequence[int]:
    """Return one point of each of `count` equal parts, drawn with a seed; all if there are no more, or for None."""
    if count is None or len(points) <= count:
        return points
    draw, total = random.Random(seed), len(points)
    return [draw.choice(points[part * total // count : (part + 1) * total // count]) for part in range(count)]


def try_scenario(name: str, stride: int = 1, errors: Sequence[int] = ERRORS, kills: bool = True) -> Tally:
    """Kill and fail a scenario at every call, or every `stride`-th; at some of them if it names a number."""
    tally = Tally(name)
    memory = Path("/dev/shm")  # where flushing costs nothing
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as base:
        trial = Trial(SCENARIOS[name], Path(base).resolve())
        tally.calls = len(trial.calls)
        points, samples = range(1, len(trial.calls) + 1, stride), SCENARIOS[name].samples
        for at in sampled(points, samples, 0) if kills else ():
            trial.attempt(at, None, False, tally)
        for number in errors:
            for at in sampled(points, samples and max(1, samples // len(errors)), number):
                trial.attempt(at, number, number in (errno.ENOSPC, errno.EDQUOT), tally)
    return tally


def main(arguments: Sequence[str]) -> int:
    """Try the scenarios that are named, or all, and print a table."""
    small_windows()
    _import_all()
    words = list(arguments)
    stride = int(words.pop(words.index("--stride") + 1)) if "--stride" in words else 1
    names = [word for word in words if not word.startswith("--")] or list(SCENARIOS)
    tallies = []
    for name in names:
        if not has(SCENARIOS[name].needs):
            print(f"{name:40} skipped: {SCENARIOS[name].needs} is not installed", file=sys.stderr)
            continue
        errors = () if "--kills-only" in words else ERRORS
        tally = try_scenario(name, stride, errors, "--errors-only" not in words)
        tallies.append(tally)
        if "--json" not in words:
            print(
                f"{tally.name:40} {tally.calls:5} calls {tally.kills:5} kills {tally.failures:5} failures "
                f"{tally.reported:5} reported {tally.whole:5} whole {len(tally.problems):4} problems",
                flush=True,
            )
            for problem in tally.problems[:12]:
                print("   ", problem, flush=True)
    if "--json" in words:
        print(json.dumps([vars(tally) for tally in tallies]))
    return int(any(tally.problems for tally in tallies))


def has(module: str) -> bool:
    """Return whether a module is installed; True for the empty name."""
    return not module or importlib.util.find_spec(module) is not None


def _import_all() -> None:
    """Import once what every child needs."""
    for name in _MODULES:
        importlib.import_module(name)
    if has("model_signing"):
        importlib.import_module("model_signing.signing")


_MODULES = (
    *("pyarrow.parquet", "whiten_evaluation.commands.output", "whiten_evaluation.sweep.store"),
    *("whiten_export.commands.export", "whiten_export.commands.refit", "whiten_export.pipeline.export_vectors"),
    *("whiten_export.pipeline.fit", "whiten_export.pipeline.refit", "whiten_runtime.commands.main"),
    *("whiten_runtime.commands.embed", "whiten_runtime.commands.sign", "whiten_runtime.commands.transform"),
    *("whiten_whitening.codes.coder", "whiten_whitening.estimator"),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
