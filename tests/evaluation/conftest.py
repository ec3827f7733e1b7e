"""Let tests evaluate a bundle of today, whose graph gives the vectors before whitening too."""

from pathlib import Path

import pytest

from whiten import Encoder


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle


@pytest.fixture(scope="session")
def tiny(tiny_bundle: Path) -> Encoder:
    """Open this folder's bundle: pytest opens a session's fixture once, for the first folder that asks for it."""
    return Encoder(tiny_bundle)
