import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whiten_export.writing.staging import staged
from whiten_runtime import UsageError, WhitenError

pytestmark = pytest.mark.slow


def _fill(stage: Path, content: str = "new") -> None:
    (stage / "whiten.json").write_text(content)
    (stage / "onnx").mkdir()


def test_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "bundle"
    with staged(target, False) as stage:
        _fill(stage)
        assert not target.exists()
    assert sorted(path.name for path in target.iterdir()) == ["onnx", "whiten.json"]
    assert [path.name for path in target.parent.iterdir()] == ["bundle"]


def test_error_leaves_no_files(tmp_path: Path) -> None:
    def fail() -> None:
        with staged(tmp_path / "bundle", False) as stage:
            _fill(stage)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


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


KILLED_AT_RENAME = """
import os, signal, sys
from pathlib import Path
from whiten_export.writing import staging
from whiten_export.writing.staging import staged
staging.exchange = lambda first, second: False
real, count = Path.rename, 0
def rename(self, target):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
Path.rename = rename
with staged(Path(sys.argv[1]), True) as stage:
    (stage / "whiten.json").write_text("new")
"""


@pytest.mark.parametrize("rename", [1, 2])
def test_old_bundle_survives_a_kill_during_replacement(tmp_path: Path, rename: int) -> None:
    target = tmp_path / "b[1]"
    with staged(target, False) as stage:
        _fill(stage, "old")
    done = subprocess.run([sys.executable, "-c", KILLED_AT_RENAME, target, str(rename)], check=False)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(UsageError, match="replace it with --force"), staged(target, False):
        pass
    assert (target / "whiten.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["b[1]"]


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


def test_errors_of_other_files_are_not_converted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), staged(tmp_path / "a" / "bundle", False):
        (tmp_path / "input.txt").read_text()


KILLED = """
import os, signal, sys
from pathlib import Path
from whiten_export.writing.staging import staged
with staged(Path(sys.argv[1]), False) as stage:
    (stage / "half").write_text("x")
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="directories cannot be locked")
def test_leftovers_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, tmp_path / "bundle"]
    subprocess.run([*command, "kill"], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with subprocess.Popen([*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # the process runs now, and has removed the leftovers of the killed one
        (theirs,) = tmp_path.iterdir()
        with staged(tmp_path / "bundle", False) as stage:
            _fill(stage)
            assert theirs.exists()
        other.communicate()
    assert "whiten.json" in {path.name for path in (tmp_path / "bundle").iterdir()}
