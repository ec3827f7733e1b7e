"""A bundle to be damaged."""

from pathlib import Path

import pytest

from support.bundles import copy_bundle


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return copy_bundle(tiny_bundle, tmp_path)
