"""Let tests evaluate a bundle of today, whose graph gives the vectors before whitening too."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle
