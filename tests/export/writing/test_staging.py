import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from whiten import UsageError, WhitenError
from whiten_export import staging
from whiten_export.staging import check_place, staged
from whiten_runtime.reporter import Reporter

pytestmark = pytest.mark.slow


def _fill(stage: Path, content: str = "new") -> None:
    (stage / "whiten.json").write_text(content)
    (stage / "onnx").mkdir()


def test_error_leaves_no_files(tmp_path: Path) -> None:
    def fail() -> None:
        with staged(tmp_path / "bundle", False) as stage:
            _fill(stage)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_files_are_flushed_by_handles_that_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows flushes no other."""
    flags = dict[str, int]()
    real = os.fsync

    def flush(descriptor: int) -> None:
        flags[Path(f"/proc/self/fd/{descriptor}").readlink().name] = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", flush)
    with staged(tmp_path / "bundle", replace=False) as stage:
        (stage / "onnx").mkdir()
        for name in ("whiten.json", "onnx/model.onnx", "empty"):
            (stage / name).write_bytes(b"" if name == "empty" else b"content")
    assert {name for name, flag in flags.items() if flag & os.O_ACCMODE != os.O_RDONLY} == {
        *("whiten.json", "model.onnx", "empty")
    }


def test_replacing_a_bundle_needs_force(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with staged(target, False) as stage:
        _fill(stage, "old")
    with pytest.raises(UsageError, match="replace it with --force"), staged(target, False):
        pass
    with staged(target, True) as stage:
        _fill(stage)
        assert (target / "whiten.json").read_text() == "old"
    assert (target / "whiten.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_link_to_a_bundle_stays_a_link(tmp_path: Path) -> None:
    with staged(tmp_path / "real", False) as stage:
        _fill(stage, "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with staged(tmp_path / "link", True) as stage:
        _fill(stage)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "whiten.json").read_text() == "new"


@pytest.mark.parametrize("replace", [False, True])
def test_other_files_and_folders_are_never_replaced(tmp_path: Path, replace: bool) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "plain").write_text("x")
    for name in ("precious", "plain"):
        with pytest.raises(UsageError, match="is not a bundle"), staged(tmp_path / name, replace):
            pass
    (tmp_path / "empty").mkdir()
    with staged(tmp_path / "empty", replace) as stage:
        _fill(stage)


def test_unwritable_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "bundle", Path("/proc/no/such/bundle")):
        with pytest.raises(WhitenError, match="cannot be written") as caught, staged(place, False):
            pass
        assert "\n" not in str(caught.value)


TWO_RENAMES = """
from whiten_export import staging
staging._exchange_names = lambda first, second: False
"""

REPLACED = """
import sys
from pathlib import Path
from whiten_export.staging import staged
for number in range(50):
    with staged(Path(sys.argv[1]), True) as stage:
        (stage / "whiten.json").write_text(f"{sys.argv[2]} {number}")
"""


@pytest.mark.parametrize("exchanges", [True, False])
def test_processes_that_replace_a_bundle_at_once_leave_one_whole_bundle(tmp_path: Path, exchanges: bool) -> None:
    code = REPLACED if exchanges else TWO_RENAMES + REPLACED
    commands = [[sys.executable, "-c", code, tmp_path / "bundle", name] for name in "abc"]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert (tmp_path / "bundle" / "whiten.json").read_text() in {f"{name} 49" for name in "abc"}
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


KILLED = """
import os, signal, sys
from pathlib import Path
from whiten_export.staging import staged
with staged(Path(sys.argv[1]), True) as stage:
    (stage / "weights").write_bytes(bytes(3_000_000))
    os.kill(os.getpid(), int(sys.argv[2]))
    print("alive", flush=True)
    input()
"""


class Said(Reporter):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)


def test_what_a_killed_export_left_is_named_and_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "b[1]"
    assert subprocess.run([sys.executable, "-c", KILLED, target, "9"]).returncode == -9
    (left,) = tmp_path.iterdir()
    said = Said()
    with staged(target, False, report=said) as stage:
        assert [str(left) in line for line in said.stages] == [True]
        assert [path.name for path in tmp_path.iterdir()] == [stage.name]
        _fill(stage)
    assert [path.name for path in tmp_path.iterdir()] == ["b[1]"]


def test_the_folder_of_an_export_that_runs_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, tmp_path / "b", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"alive\n"
        (theirs,) = tmp_path.iterdir()
        said = Said()
        with staged(tmp_path / "b", False, report=said) as stage:
            _fill(stage)
        assert said.stages == []
        assert (theirs / "weights").stat().st_size == 3_000_000
        running.kill()


def test_a_bundle_that_has_lost_its_name_gets_it_back_and_is_not_replaced_without_force(tmp_path: Path) -> None:
    hidden = tmp_path / ".b.replaced-0123"
    hidden.mkdir()
    _fill(hidden, "old")
    with pytest.raises(UsageError, match="replace it with --force"):
        check_place(tmp_path / "b", False)
    assert (tmp_path / "b" / "whiten.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_old_bundle_stays_where_the_new_one_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    target, real = tmp_path / "b[1]", Path.rename
    with staged(target, False) as stage:
        _fill(stage, "old")

    def rename(self: Path, to: Path) -> Path:
        if (self / "new").exists():
            raise PermissionError(13, "no")
        return real(self, to)

    def exchange(first: Path, second: Path) -> bool:
        if exchanges:
            raise PermissionError(13, "no")
        return False

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(staging, "_exchange_names", exchange)
    with pytest.raises(WhitenError, match="cannot be written"), staged(target, True) as stage:
        (stage / "new").touch()
    assert (target / "whiten.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["b[1]"]


def test_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def export() -> None:
        with staged(tmp_path / "bundle", True) as stage:
            _fill(stage)
            (tmp_path / "bundle").mkdir()
            (tmp_path / "bundle" / "precious").write_text("x")

    with pytest.raises(UsageError, match="is not a bundle"):
        export()
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["precious"]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("replace", [False, True])
def test_slower_of_two_exports_replaces_only_with_force(tmp_path: Path, replace: bool) -> None:
    def race() -> None:
        with staged(tmp_path / "bundle", replace) as slow:
            _fill(slow, "slow")
            with staged(tmp_path / "bundle", False) as fast:
                _fill(fast, "fast")

    if replace:
        race()
    else:
        with pytest.raises(UsageError, match="exists"):
            race()
    assert (tmp_path / "bundle" / "whiten.json").read_text() == ("slow" if replace else "fast")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("error", [MemoryError(), TimeoutError(110, "timed out")], ids=repr)
def test_errors_of_other_work_are_not_converted(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, staged(tmp_path / "bundle", False):
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_where_numpy_writes(tmp_path: Path) -> None:
    """numpy gives neither the system's number nor the name of the file."""
    with pytest.raises(WhitenError, match="bundle: cannot be written"):
        fill_disk(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def fill_disk(place: Path) -> None:
    """Write a bundle with a link to a device that is full."""
    with staged(place, False) as stage:
        (stage / "model.npy").symlink_to("/dev/full")
        np.ones(40000).tofile(stage / "model.npy")
