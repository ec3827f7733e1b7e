"""Test that a damaged file of statistics is refused in one line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from whiten import DataError
from whiten_export.corpus.statistics import Origin, fit_vectors, load_statistics, save_statistics

Arrays = dict[str, NDArray[np.generic]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of statistics, which can be read."""
    origin = Origin(
        model="m",
        weights_sha256="0" * 64,
        tokenizer_sha256="",
        input="vectors",
        layers=(),
        pooling=None,
        max_seq_length=0,
        precision="fp32",
    )
    statistics = fit_vectors(iter([np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)]))
    assert statistics is not None
    save_statistics(tmp_path / "s.safetensors", statistics, origin)
    assert load_statistics(tmp_path / "s.safetensors")[1] == origin
    return tmp_path / "s.safetensors"


def rewrite(file: Path, change: Callable[[Arrays], Arrays], metadata: dict[str, str] | None = None) -> None:
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        kept = opened.metadata()
    save_file(change(load_file(file)), file, metadata or kept)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"origin":' * 100_000, "{}", "", "null"])
def test_metadata(content: str, file: Path) -> None:
    rewrite(file, dict, {"whiten": content})
    with pytest.raises(DataError, match=r"s\.safetensors: not a file of whiten fit \(.*\); make it again$"):
        load_statistics(file)


@pytest.mark.parametrize(
    "name", ["n", "mean", "scatter", "third", "fourth", "directions", "sample.keys", "sample.vectors"]
)
def test_an_array_of_another_type(name: str, file: Path) -> None:
    rewrite(file, lambda arrays: arrays | {name: arrays[name].astype(np.int32)})
    with pytest.raises(DataError, match=r"s\.safetensors: not a file of whiten fit \(.*int32.*\); make it again$"):
        load_statistics(file)
