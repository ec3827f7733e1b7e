"""Fixtures of the tests of signatures: keys, a bundle, and a signed one."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from whiten_runtime.signing import sign_bundle

if TYPE_CHECKING:
    from support.keys import KeyPair


@pytest.fixture
def keys(tmp_path: Path) -> "KeyPair":
    from support.keys import key_pair  # needs cryptography, which the tests without the extra do not have

    return key_pair(tmp_path)


@pytest.fixture
def bundle(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "bundle-v1", tmp_path / "bundle"))


@pytest.fixture
def signed(bundle: Path, keys: "KeyPair") -> Path:
    sign_bundle(bundle, keys.private)
    return bundle
