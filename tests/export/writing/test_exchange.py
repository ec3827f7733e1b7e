"""Test that a bundle is replaced in one step: a reader always finds one under its name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whiten_export.writing import staging
from whiten_export.writing.exchange import exchange
from whiten_export.writing.staging import staged

pytestmark = pytest.mark.slow

_READER = """
import json, sys
from pathlib import Path
path, seen, failed = Path(sys.argv[1]) / "whiten.json", set(), 0
print(flush=True)
while "last" not in seen:
    try:
        seen.add(json.loads(path.read_text()))
    except FileNotFoundError:
        failed += 1
print(json.dumps([failed, len(seen)]))
"""


def test_two_directories_are_exchanged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange")
    assert [(tmp_path / name / "file").read_text() for name in ("a", "b")] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "absent")


def test_a_reader_finds_a_bundle_at_any_time(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    if not exchange(tmp_path / "one", tmp_path / "two"):
        pytest.skip("this file system cannot exchange")
    _replace(target, "first")
    with subprocess.Popen([sys.executable, "-c", _READER, target], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(300):
            _replace(target, f"bundle {number}")
        _replace(target, "last")
        failed, seen = json.loads(reader.communicate()[0])
    assert failed == 0
    assert seen > 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "one", "two"]


def test_without_exchange_a_bundle_is_replaced_in_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "exchange", lambda first, second: False)
    for content in ("old", "new"):
        _replace(tmp_path / "bundle", content)
    assert json.loads((tmp_path / "bundle" / "whiten.json").read_text()) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def _replace(target: Path, content: str) -> None:
    with staged(target, True) as stage:
        (stage / "whiten.json").write_text(json.dumps(content))
