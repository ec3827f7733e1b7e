"""Give tests of guarantees the input of a bulk job, and the output of one that nothing disturbed."""

from pathlib import Path

import pytest

from support.bulk import FILES, ids_of, options, write_file
from support.cli import ok
from support.once import once


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files of three kinds."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in FILES:
            write_file(folder / name, ids_of(name))

    return once(tmp_path_factory, "bulk-source", write)


@pytest.fixture(scope="module")
def undisturbed(tiny_bundle: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job that nothing disturbed."""
    return once(tmp_path_factory, "bulk-out", lambda path: ok(*options(tiny_bundle, source, path, "--workers", 1)))
