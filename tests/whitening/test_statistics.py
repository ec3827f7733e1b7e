"""Test `whiten fit`: statistics of a corpus, merged for a refit; and damaged files of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from support.cli import ok
from support.corpus import sentences
from whiten import DataError, Encoder, WhiteningSpec, refit_bundle
from whiten_runtime.bundle.manifest import read_manifest
from whiten_whitening.statistics import Statistics, load_statistics


@pytest.mark.slow
def test_merged_statistics_equal_those_of_the_whole_corpus(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = sentences(900)
    for name, part in {"a": texts[:500], "b": texts[500:], "all": texts}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(part) + "\n", "utf-8")
        ok("fit", tiny_bundle, "--corpus", tmp_path / f"{name}.txt", "-o", tmp_path / f"{name}.safetensors")
    first, second, whole = (load_statistics(tmp_path / f"{name}.safetensors")[0] for name in ("a", "b", "all"))
    merged = Statistics.merge(first, second)
    scale = np.abs(whole.moments.scatter).max()  # batches differ, and so does rounding in float32
    np.testing.assert_allclose(merged.moments.scatter, whole.moments.scatter, atol=1e-6 * scale)
    assert len(merged.sample.keys) == len(whole.sample.keys) == 900
    for name, parts in (("ab", "ab"), ("all", ["all"])):
        stats = [option for part in parts for option in ("--stats", tmp_path / f"{part}.safetensors")]
        ok("refit", tiny_bundle, *stats, "--out", tmp_path / name)
    with Encoder(tmp_path / "ab") as one, Encoder(tmp_path / "all") as other:
        np.testing.assert_allclose(one.encode(texts[:20]), other.encode(texts[:20]), atol=1e-3)
        corpus = one.manifest.whitening.corpus  # type: ignore[union-attr]
        assert [(record.name, record.sentences) for record in corpus] == [("a.txt", 500), ("b.txt", 400)]
    both = [tmp_path / f"{name}.safetensors" for name in "ab"]
    made = refit_bundle(tiny_bundle, both, WhiteningSpec(shrinkage=0.5), tmp_path / "python")
    assert made.manifest.space == read_manifest(tmp_path / "ab").space


Arrays = dict[str, NDArray[np.generic]]


@pytest.fixture(scope="module")
def statistics(tiny_bundle: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("statistics") / "s.safetensors"
    ok("fit", tiny_bundle, "--corpus", corpus_file, "-o", path)
    return path


@pytest.fixture
def file(statistics: Path, tmp_path: Path) -> Path:
    """Copy a file of statistics, to be damaged."""
    return Path(shutil.copy(statistics, tmp_path))


def rewrite(file: Path, change: Callable[[Arrays], Arrays], metadata: dict[str, str] | None = None) -> None:
    with safe_open(file, "numpy") as opened:
        kept = opened.metadata()
    save_file(change(load_file(file)), file, metadata or kept)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"origin":' * 100_000, "{}", "", "null"])
def test_damaged_metadata_of_statistics_is_refused(content: str, file: Path) -> None:
    rewrite(file, dict, {"whiten": content})
    with pytest.raises(DataError, match=r"s\.safetensors: "):
        load_statistics(file)


@pytest.mark.parametrize(
    "name", ["n", "mean", "scatter", "third", "fourth", "directions", "sample.keys", "sample.vectors"]
)
def test_statistics_of_another_type_are_refused(name: str, file: Path) -> None:
    rewrite(file, lambda arrays: arrays | {name: arrays[name].astype(np.int32)})
    with pytest.raises(DataError, match=r"s\.safetensors: .*int32"):
        load_statistics(file)
