"""Run scenarios of the crash suite in forked children."""

import io
import os
import sys
from pathlib import Path

from crashes.scenario import Scenario
from support.faults import Faults


def run_in_child(scenario: Scenario, folder: Path, faults: Faults | None, log: Path) -> int:
    """Run a scenario in a forked child, and return its exit code, or minus the number of the signal that ended it."""
    child = os.fork()
    if not child:
        code = 99
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
            if faults is not None:
                faults.install()
            code = _code_of(scenario, folder)
        finally:
            if faults is not None and not faults.at:
                sys.stdout.write("\n".join(["", "calls:", *faults.calls]))
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _code_of(scenario: Scenario, folder: Path) -> int:
    from whiten_runtime.errors import WhitenError

    try:
        scenario.run(folder)
    except SystemExit as end:
        return int(end.code or 0)
    except WhitenError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except BaseException:
        import traceback

        traceback.print_exc()
        return 98
    return 0
