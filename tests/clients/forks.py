"""Run programs in forks of this process, after it has imported modules: forks.py MODULE...

Each line of standard input is an array of JSON: a file for what is printed, a folder, variables, and the program with
its arguments. A line with its exit code answers it.
"""

import atexit
import json
import os
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn


def run(output: str, folder: str, variables: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    """Run a program in this process, and end without what waits for threads of the process that it was forked from."""
    printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for target, file in enumerate((os.open(os.devnull, os.O_RDONLY), printed, printed)):
        os.dup2(file, target)
    os.chdir(folder)
    os.environ.update(variables)
    sys.argv = list(command)
    sys.path[0] = str(Path(command[0]).parent)
    code: Any = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            run(*json.loads(line))
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
