"""Run mutants of a bundle in processes that are watched, and count what becomes of them."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

LONGEST = 10.0
"""Seconds that a mutant may take."""

_STARTUP = 60.0

_TESTS = Path(__file__).parents[1]


@dataclass
class Outcome:
    """Holds what became of mutants.

    Attributes:
        found: one record a mutant: number, verdict, why, kind, file, what, rehashed, seconds.
    """

    found: list[dict[str, Any]] = field(default_factory=list)

    def having(self, verdict: str, rehashed: bool | None = None) -> list[dict[str, Any]]:
        return [
            record
            for record in self.found
            if record["verdict"] == verdict and rehashed in (None, record.get("rehashed"))
        ]

    def table(self) -> str:
        """Return the counts by verdict, error, kind of change, and whether hashes were recomputed."""
        counts = Counter(
            (record["verdict"], record["why"].split(":")[0], record.get("kind"), record.get("rehashed"))
            for record in self.found
        )
        return "\n".join(f"{count:6} {' | '.join(map(str, key))}" for key, count in sorted(counts.items(), key=str))


def run_mutants(bundle: Path, other: Path, folder: Path, count: int, processes: int) -> Outcome:
    """Judge mutants 0 to count - 1; one that kills its process, or takes too long, is a "crash" or a "hang"."""
    outcome = Outcome()
    with ThreadPoolExecutor(processes) as pool:
        parts = [
            pool.submit(_run_part, bundle, other, folder / str(part), part, count, processes)
            for part in range(processes)
        ]
        for part in parts:
            outcome.found += part.result()
    outcome.found.sort(key=lambda record: record["number"])
    return outcome


def _run_part(bundle: Path, other: Path, folder: Path, first: int, end: int, step: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while first < end:
        begun, records, verdict = _run_process(bundle, other, folder, first, end, step)
        found += records
        if verdict is None:
            break
        assert begun is not None, f"the process of mutants from {first} ended before the first: {verdict}"
        found.append({"number": begun, "verdict": verdict[0], "why": verdict[1], "seconds": LONGEST})
        first = begun + step
    return found


def _run_process(
    bundle: Path, other: Path, folder: Path, first: int, end: int, step: int
) -> tuple[int | None, list[dict[str, Any]], tuple[str, str] | None]:
    """Run a process, and return the number it was at, what it found, and how it ended, if not well."""
    arguments = [bundle, other, folder, first, end, step]
    command = [sys.executable, "-m", "support.mutant_worker", *map(str, arguments)]
    path = os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    begun: int | None = None
    records: list[dict[str, Any]] = []
    last = time.monotonic() + _STARTUP
    hung = threading.Event()
    with (
        TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | {"PYTHONPATH": path}
        ) as process,
    ):

        def watch() -> None:
            while process.poll() is None:
                if time.monotonic() - last > LONGEST:
                    hung.set()
                    process.kill()
                time.sleep(0.2)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout is not None
        for line in process.stdout:
            last, record = time.monotonic(), json.loads(line)
            if "verdict" in record:
                records.append(record)
                begun = None
            else:
                begun = record["number"]
        code = process.wait()
        watcher.join()
        log.seek(0)
        errors = log.read()[-500:]
    if code == 0:
        return None, records, None
    return begun, records, ("hang", "") if hung.is_set() else ("crash", f"exit {code}: {errors}")


if __name__ == "__main__":
    done = run_mutants(*map(Path, sys.argv[1:4]), int(sys.argv[4]), int(sys.argv[5]))
    Path(sys.argv[6]).write_text(json.dumps(done.found, indent=0))
    print(done.table())
