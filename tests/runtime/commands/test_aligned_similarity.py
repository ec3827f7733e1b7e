"""Test `whiten similarity` on vectors of a bundle and of one that is aligned with it."""

from pathlib import Path

import numpy as np
import pytest

from support.cli import invoke
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.vector_metadata import VectorMetadata, sidecar_of

OLD, NEW, OTHER = "0" * 16, "1" * 16, "2" * 16


def write(path: Path, space: str, **more: str) -> Path:
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.save(path, vectors)
    described = VectorMetadata(space=space, bundle="b", dimension=4, normalized=False, vectors=3, **more)  # type: ignore[arg-type]
    sidecar_of(path).write_bytes(described.to_json())
    return path


@pytest.mark.parametrize(("aligned_with", "code"), [(OLD, 0), (OTHER, 2)])
def test_aligned_spaces_are_compared_with_a_warning(tmp_path: Path, aligned_with: str, code: int) -> None:
    old, new = write(tmp_path / "old.npy", OLD), write(tmp_path / "new.npy", NEW, aligned_with=aligned_with)
    for first, second in ((old, new), (new, old)):
        result = invoke(whiten, "similarity", first, second)
        assert result.exit_code == code, result.stderr
        assert ("are aligned" in result.stderr) == (code == 0)
