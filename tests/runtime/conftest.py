"""The runtime's tests use the golden bundles of format 1, which the first version of the project wrote."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the golden bundles, and of the vectors that their authors' version gave."""
    return GOLDEN


@pytest.fixture(scope="session")
def tiny_bundle() -> Path:
    """A small BERT, layers 1 and 4, whitened."""
    return GOLDEN / "bundle-v1"
