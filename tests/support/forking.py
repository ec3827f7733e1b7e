"""Run programs in forks of a process that has imported torch and the commands: `whiten`, `whiten-export` and `python`.

`Programs` starts that process, and writes the programs into a folder for PATH. A program there connects to it, hands
over its arguments, folder, variables and open files, passes signals on, and ends as the fork ends. What is read when a
module is imported, such as the cache of the hub, is the same for all programs of a process.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

SOCKET = "socket"
PRELOADED = (
    *("sentence_transformers", "tokenizers", "torch", "transformers", "whiten"),
    *("whiten_evaluation.commands", "whiten_export.commands.export", "whiten_export.export"),
    *("whiten_export.sources.pytorch", "whiten_runtime.commands.console", "whiten_scale.commands.embed_many"),
)
_FILES = (0, 1, 2)


class Programs:
    """A process that has imported the commands, until it is closed."""

    def __init__(self, folder: Path, traces: Path, variables: Mapping[str, str]) -> None:
        self.path = folder / "bin"
        self.path.mkdir(parents=True)
        for name in ("whiten", "whiten-export", "python"):
            program = self.path / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "{folder}" {name} "$@"\n')
            program.chmod(0o755)
        tests = str(Path(__file__).parents[1])
        paths = [tests, variables.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(variables) | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "support.forking", str(folder), str(traces)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """End the process; a fork ends with the program that asked for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _ask(folder: Path, name: str, arguments: Sequence[str]) -> int:
    """Have a program run by the process of a folder; return its exit code, or die of the signal it died of."""
    if name == "python" and (not arguments or arguments[0].startswith("-")):
        os.execv(sys.executable, [sys.executable, *arguments])
    request = {"name": name, "arguments": arguments, "folder": str(Path.cwd()), "variables": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / SOCKET))
        socket.send_fds(connection, [b"."], _FILES)
        with connection.makefile("rw") as lines:
            lines.write(json.dumps(request) + "\n")
            lines.flush()
            process = int(lines.readline())
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, lambda sent, _: _pass_on(process, sent))
            code = int(lines.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _pass_on(process: int, sent: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(process, sent)


def _serve(folder: Path, traces: Path) -> Callable[[], None] | None:
    """Fork for every program that asks; return in a fork what it runs, and None when standard input ends."""
    import gc
    import selectors
    from importlib import import_module

    from whiten_runtime.ort.session import import_onnxruntime

    import_onnxruntime()  # before others: it starts no thread, which a fork would not have
    for module in PRELOADED:
        import_module(module)
    from support.traces import remembering
    from whiten_export.sources import pytorch

    pytorch.trace = remembering(pytorch.trace, traces)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch a program
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(str(folder / SOCKET))
        listener.listen(64)
        print("ready", flush=True)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj == listener for key, _ in selector.select()):
            connection, _ = listener.accept()
            if os.fork() == 0:
                selector.close()
                listener.close()
                return _watch(connection)
            connection.close()
    return None


def _watch(connection: socket.socket) -> Callable[[], None]:
    """Fork a program; return it in the fork, and end with it. It is killed when whoever asked is gone."""
    import select

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(connection, 1, len(_FILES))
    lines = connection.makefile("rw")
    request = json.loads(lines.readline())
    ended, running = os.pipe()  # the program and its own forks hold the second end
    process = os.fork()
    if process == 0:
        os.setsid()
        os.close(ended)
        for target, file in zip(_FILES, files, strict=True):
            os.dup2(file, target)
            os.close(file)
        lines.close()
        connection.close()
        return _program(request)
    os.close(running)
    for file in files:
        os.close(file)
    print(process, file=lines, flush=True)
    if connection in select.select((connection, ended), (), ())[0]:
        _pass_on(process, signal.SIGKILL)  # in case it leads no group yet
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with suppress(OSError):
        print(os.waitstatus_to_exitcode(status), file=lines, flush=True)
    os._exit(0)


def _program(request: Mapping[str, Any]) -> Callable[[], None]:
    """Return a program, in whose folder and variables this process then is."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    name, arguments = request["name"], request["arguments"]
    if name == "python":
        return lambda: _run_python(arguments)
    sys.argv = [name, *arguments]
    if name == "whiten":
        from whiten_runtime.commands.console import main
    else:
        from whiten_export.commands.export import main
    return main


def _run_python(arguments: Sequence[str]) -> None:
    """Run a file with its arguments."""
    import runpy

    sys.argv = list(arguments)
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


def _end(program: Callable[[], None]) -> NoReturn:
    """Run a program, and end this process without what waits for threads of the process that it was forked from."""
    code: Any = 0
    try:
        program()
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for the program's own threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    first, second, *others = sys.argv[1:]
    if sys.flags.isolated:
        sys.exit(_ask(Path(first), second, others))
    program = _serve(Path(first), Path(second))
    if program is not None:
        _end(program)
