"""Fixtures of the tests with a hub on this machine."""

from pathlib import Path

import pytest

from support.bundles import contents


@pytest.fixture(scope="session")
def content(tiny_bundle: Path) -> dict[str, bytes]:
    """The files of a bundle, with others that are no part of it."""
    others = {"LICENSE": b"all rights reserved", "other/model.safetensors": b"another model"}
    return contents(tiny_bundle) | others
