"""The fresh bundle in place of the golden one, which has no card."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle
