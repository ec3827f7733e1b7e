"""Kill the two functions that write every output, or fill the disk, at each call that changes a file.

A folder is replaced by one exchange of names, or by two renames where the system has none: both are tried.
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whiten_export import staging
from whiten_export.staging import staged
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import WhitenError
from whiten_runtime.files.replacing import replacing

pytestmark = pytest.mark.slow

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "half written"}
HALF = b"0123456789abcdef" * 1000
OLD, NEW = b"old", HALF + HALF


def write_file(folder: Path) -> None:
    with replacing(folder / "out") as file:
        write_in_halves(file, folder)


def write_folder(folder: Path) -> None:
    with staged(folder / "out", replace=True) as stage:
        (stage / "onnx").mkdir()
        with (stage / "onnx" / "model.onnx").open("wb") as file:
            write_in_halves(file, folder)
        (stage / MANIFEST_FILE).write_bytes(NEW)


def write_folder_by_renames(folder: Path) -> None:
    staging._exchange_names = lambda first, second: False  # type: ignore[assignment]
    write_folder(folder)


def write_in_halves(file: Any, folder: Path) -> None:
    file.write(HALF)
    file.flush()
    sys.audit("half written", str(folder / "out"), file.fileno())
    file.write(HALF)


def content(path: Path) -> dict[str, bytes]:
    """Return what is in a file, or in the files below a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


WRITERS: dict[str, tuple[Callable[[Path], None], dict[str, bytes], dict[str, bytes]]] = {
    "file": (write_file, {".": OLD}, {".": NEW}),
    "folder": (write_folder, {MANIFEST_FILE: OLD}, {MANIFEST_FILE: NEW, "onnx/model.onnx": NEW}),
    "folder, two renames": (
        write_folder_by_renames,
        {MANIFEST_FILE: OLD},
        {MANIFEST_FILE: NEW, "onnx/model.onnx": NEW},
    ),
}


def write(folder: str, kind: str, at: int, error: int) -> str:
    """Write, end or fail at the call of a number, and return the number of calls."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (event in CHANGES or opened) or isinstance(arguments[0], int):
            return
        path = os.fsdecode(arguments[0])
        if path.startswith("/") and not path.startswith(folder):
            return
        count += 1
        if count == at:
            if not error:
                os.kill(os.getpid(), signal.SIGKILL)
            if event != "half written":
                raise OSError(error, os.strerror(error), path)
            os.dup2(os.open("/dev/full", os.O_WRONLY), arguments[1])

    sys.addaudithook(hook)
    WRITERS[kind][0](Path(folder))
    return str(count)


def run(folder: Path, kind: str, at: int = 0, error: int = 0) -> tuple[int, str]:
    """Write in a fork of this process; return its exit code, and the number of calls or the error."""
    log = folder.with_name(f"{folder.name}.log")
    process = os.fork()
    if process == 0:
        code = 2
        with log.open("w") as file:
            try:
                file.write(write(str(folder), kind, at, error))
                code = 0
            except WhitenError as problem:
                file.write(str(problem))
                code = 1
            except BaseException:
                traceback.print_exc(file=file)
        os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), log.read_text()


def prepare(folder: Path, kind: str) -> Path:
    """Write the old output, and return its place."""
    for name, old in WRITERS[kind][1].items():
        path = folder / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(old)
    return folder / "out"


@pytest.mark.parametrize("error", [0, errno.ENOSPC], ids=["killed", "disk full"])
@pytest.mark.parametrize("kind", WRITERS)
def test_the_old_output_or_the_new_one_is_whole_after_a_fault_at_any_call(
    kind: str, error: int, tmp_path: Path
) -> None:
    _, old, new = WRITERS[kind]
    (tmp_path / "0").mkdir()
    prepare(tmp_path / "0", kind)
    calls = int(run(tmp_path / "0", kind)[1])
    assert calls >= 3
    for at in range(1, calls + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        out = prepare(folder, kind)
        code, printed = run(folder, kind, at, error)
        if error:
            assert code == 0 or (code == 1 and "\n" not in printed and str(out) in printed), printed
        else:
            assert code == -signal.SIGKILL, f"call {at} of {calls}"
        found = content(out)
        if not found:  # between two renames the old folder has another name, until the next writer gives it its own
            assert kind == "folder, two renames"
            staging.check_place(out, replace=True)
            found = content(out)
        assert found in (old, new), f"call {at} of {calls}"
        assert run(folder, kind)[0] == 0
        assert content(out) == new
        assert [path.name for path in folder.iterdir()] == ["out"], f"call {at} of {calls}"
