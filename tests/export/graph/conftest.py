"""These tests use a bundle that was exported now."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle
