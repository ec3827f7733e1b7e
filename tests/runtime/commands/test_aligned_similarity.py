"""Test `whiten similarity` on vectors of a bundle and of one that is aligned with it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from support.cli import invoke
from whiten_runtime.bundle.records import AlignmentRecord
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.vector_metadata import VectorMetadata, sidecar_of

OLD, NEW, OTHER = "0" * 16, "1" * 16, "2" * 16


def write(path: Path, space: str, alignment: AlignmentRecord | None = None) -> Path:
    np.save(path, np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    described = VectorMetadata(space=space, bundle="b", dimension=4, normalized=False, vectors=3)
    if alignment is not None:
        described = msgspec.structs.replace(described, alignment=alignment)
    sidecar_of(path).write_bytes(described.to_json())
    return path


@pytest.mark.parametrize(
    ("space", "cosine", "code", "message"),
    [
        (OLD, 0.96, 0, "are aligned: vectors of a text are close in both (median cosine 0.960, 99.0 %"),
        (OLD, 0.5, 2, "are aligned, but too far apart (median cosine 0.500"),
        (OTHER, 0.96, 2, "cannot be compared"),
    ],
)
def test_aligned_spaces_are_compared_with_a_warning(
    tmp_path: Path, space: str, cosine: float, code: int, message: str
) -> None:
    alignment = AlignmentRecord(space=space, median_cosine=cosine, self_recall=0.99, sentences=100)
    old, new = write(tmp_path / "old.npy", OLD), write(tmp_path / "new.npy", NEW, alignment)
    for first, second in ((old, new), (new, old)):
        result = invoke(whiten, "similarity", first, second)
        assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
        assert invoke(whiten, "similarity", first, second, "--allow-different-spaces").exit_code == 0
