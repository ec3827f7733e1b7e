import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from whiten import UsageError, WhitenError
from whiten_export.writing.staging import staged

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


REPLACED = """
import sys
from pathlib import Path
from whiten_export.writing.staging import staged
for number in range(50):
    with staged(Path(sys.argv[1]), True) as stage:
        (stage / "whiten.json").write_text(f"{sys.argv[2]} {number}")
"""


def test_processes_that_replace_a_bundle_at_once_leave_one_whole_bundle(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", REPLACED, tmp_path / "bundle", name] for name in "abc"]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert (tmp_path / "bundle" / "whiten.json").read_text() in {f"{name} 49" for name in "abc"}
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_old_bundle_stays_where_the_new_one_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, real = tmp_path / "b[1]", Path.rename
    with staged(target, False) as stage:
        _fill(stage, "old")

    def rename(self: Path, to: Path) -> Path:
        if (self / "new").exists():
            raise PermissionError(13, "no")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
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


@pytest.mark.parametrize(
    "error", [MemoryError(), KeyError("x"), ConnectionError("reset"), TimeoutError(110, "timed out")], ids=repr
)
def test_errors_of_other_work_are_not_converted(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, staged(tmp_path / "bundle", False):
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with pytest.raises(WhitenError, match=r"bundle: cannot be written \(No space left"):
        fill_disk(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_where_numpy_writes(tmp_path: Path) -> None:
    """numpy gives neither the system's number nor the name of the file."""
    with pytest.raises(WhitenError, match=r"bundle: cannot be written \(40000 requested and \d+ written\)"):
        fill_disk(tmp_path / "bundle", lambda path: np.ones(40000).tofile(path))
    assert list(tmp_path.iterdir()) == []


def fill_disk(place: Path, write: Callable[[Path], object] = lambda path: path.write_bytes(b"content")) -> None:
    """Write a bundle with a link to a device that is full."""
    with staged(place, False) as stage:
        (stage / "model.npy").symlink_to("/dev/full")
        write(stage / "model.npy")
