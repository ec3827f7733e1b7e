"""Test the messages for files of vectors that hold something else."""

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
