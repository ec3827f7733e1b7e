"""Test the messages for files of vectors that are damaged, or hold something else."""

from pathlib import Path

import numpy as np
import pytest

from whiten_runtime.errors import DataError
from whiten_runtime.files.read_vectors import read_vectors


def test_pickled_objects_are_refused_in_our_words(tmp_path: Path) -> None:
    for name, content in (("objects", np.array([{}, None])), ("text", None)):
        path = tmp_path / f"{name}.npy"
        if content is None:
            path.write_text("x")
        else:
            np.save(path, content, allow_pickle=True)
        with pytest.raises(DataError, match=r"not a \.npy file with numbers: it holds Python") as caught:
            list(read_vectors(path, None))
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize("shape", ["(99999999999999999999, 2)", "(True, 2)", "(" * 50])
def test_a_damaged_header_of_npy_is_refused_in_one_line(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a.npy"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    with pytest.raises(DataError, match=r"a\.npy: not a \.npy file \(") as caught:
        list(read_vectors(path))
    assert "\n" not in str(caught.value)
