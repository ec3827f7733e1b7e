"""Where model-signing is not installed, signing and checking name the extra, and nothing else needs it."""

import shutil
import sys
from pathlib import Path

import pytest

from support.cli import ok, refused


@pytest.fixture(autouse=True)
def _no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model_signing", "cryptography"):
        for module in [one for one in sys.modules if one.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_the_extra_is_named_in_one_line(command: str, golden: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(golden / "bundle-v1", tmp_path / "bundle"))
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----")
    option = "--key" if command == "sign" else "--public-key"
    error = refused(command, bundle, option, tmp_path / "key.pem", code=1)
    assert "install it from the clone: python -m pip install -c constraints.txt '.[sign]'" in error


def test_plain_verify_needs_no_more_packages(golden: Path) -> None:
    assert "check its author with --public-key" in ok("verify", golden / "bundle-v1").stderr
