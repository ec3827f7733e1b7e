"""Fixtures of the tests with a hub on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub_server import TOKEN, Hub, connect, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub without repositories to this process, which has an empty cache and a token, in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with serving({}) as served:
        connect(monkeypatch, served, tmp_path / "cache", TOKEN)
        yield served


@pytest.fixture(scope="session")
def content(tiny_bundle: Path) -> dict[str, bytes]:
    """The files of a bundle, with others that are no part of it."""
    files = {
        path.relative_to(tiny_bundle).as_posix(): path.read_bytes() for path in tiny_bundle.rglob("*") if path.is_file()
    }
    return files | {"LICENSE": b"all rights reserved", "other/model.safetensors": b"another model"}
