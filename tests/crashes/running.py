"""Run the crash suite in a process of its own, which has no threads when it forks."""

import json
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).parent / "try_calls.py"


def tried(*arguments: str) -> list[dict[str, object]]:
    """Return the tally of each scenario that is named."""
    command = [sys.executable, str(SUITE), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found
