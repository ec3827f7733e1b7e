"""Test fits and refits of a snapshot in the hub's cache, as the real client makes it: all files are links to blobs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.bundles import contents
from support.cli import ok
from support.hub import Hub
from whiten_export.corpus.statistics import load_statistics
from whiten_export.graph import builder as graph_files
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundles(
    checkpoint: Callable[..., Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    """The small BERT in float32 and int8, with weights in a file of their own."""
    folder = tmp_path_factory.mktemp("linked")
    for precision in ("fp32", "int8"):
        options = ("--layers", "1,4", "--whitening", "pca", "--dim", 16, "--precision", precision)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graph_files, "_INLINE_LIMIT", 1000)
            ok("export", checkpoint("bert"), "--corpus", corpus_file, *options, "--out", folder / precision)
        assert (folder / precision / EXTERNAL_DATA_FILE).is_file()
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_snapshot_of_the_hub_is_fitted_and_refitted_as_a_directory(
    hub: Hub, bundles: Mapping[str, Path], corpus_file: Path, other_file: Path, tmp_path: Path, precision: str
) -> None:
    local = bundles[precision]
    hub.repositories["org/wide"] = contents(local)
    spec = ("--whitening", "pca", "--dim", 16, "--shrinkage", "oas")
    for number, bundle in enumerate((local, "org/wide")):
        made = tmp_path / str(number)
        made.mkdir()
        ok("fit", bundle, "--corpus", other_file, "--out", made / "stats")
        ok("refit", bundle, "--stats", made / "stats", *spec, "--out", made / "new")
        ok("refit", bundle, "--corpus", other_file, *spec, "--align-to", bundle, "--out", made / "aligned")
        ok("drift", bundle, "--input", corpus_file)
    snapshot = next((tmp_path / "cache").glob("models--org--wide/snapshots/*"))
    assert (snapshot / EXTERNAL_DATA_FILE).is_symlink()
    assert load_statistics(tmp_path / "0" / "stats")[1] == load_statistics(tmp_path / "1" / "stats")[1]
    for name in ("new", "aligned"):
        assert not any(path.is_symlink() for path in (tmp_path / "1" / name).rglob("*"))
        want, got = (contents(tmp_path / number / name) for number in ("0", "1"))
        assert want == got
