"""Test vectors before whitening, and vectors truncated to fewer dimensions, those of Matryoshka loss too."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from support.bundles import add_unwhitened_output, copy_bundle
from support.cli import ok, refused
from support.corpus import sentences
from support.published import SIZE, TEXTS, save, static, transformer
from whiten import Encoder, UsageError
from whiten_runtime.bundle.parity import GATES, compare, read_probes
from whiten_runtime.inference.loading import load_unwhitened
from whiten_runtime.ort.session import SessionOptions

Exported = Callable[..., Encoder]


@pytest.fixture(scope="module")
def exported(make: Callable[..., Path]) -> Exported:
    """Return a function that opens the small BERT, exported with given options."""
    return lambda *options: Encoder(make(*options))


NORMALIZED = pytest.mark.parametrize("normalized", [(), ("--normalize",)])
RAW = ("--whitening", "none")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--normalize",), (*RAW, "--normalize")], ids=str)
def test_encode_both_equals_two_bundles(exported: Exported, options: tuple[str, ...]) -> None:
    both, raw = exported(*options), exported(*RAW)
    texts = ["", *sentences(60)]
    white, unwhitened = both.encode_both(texts)
    np.testing.assert_array_equal(white, both.encode(texts))
    np.testing.assert_allclose(unwhitened, raw.encode(texts), atol=1e-6)
    alone = both.encode_both(texts[3])
    for vector, row in zip(alone, (white[3], unwhitened[3]), strict=True):
        assert vector.shape == row.shape
        np.testing.assert_allclose(vector, row, atol=1e-5 * np.abs(row).max())
    assert both.verify().min_cosine > 0.999999


@pytest.mark.slow
def test_an_output_that_is_not_there_is_refused(exported: Exported) -> None:
    with pytest.raises(UsageError, match="one vector a text"):
        exported(*RAW).encode_both(["a"])


def test_a_bundle_of_a_version_before_this_output_is_refused(golden: Path) -> None:
    with Encoder(golden / "bundle-v1") as encoder, pytest.raises(UsageError, match=r"0\.5"):
        encoder.encode_both(["a"])


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-int8"])
def test_vectors_before_whitening(golden: Path, tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(golden / name, tmp_path)
    if name == "bundle-v1":
        add_unwhitened_output(bundle)
    with Encoder(bundle) as encoder, load_unwhitened(bundle, SessionOptions(threads=3))[1] as embedder:
        probes, manifest = read_probes(encoder._bundle), encoder.manifest
        options = replace(embedder.options, prompt="")
        for texts, want in ((probes.texts, probes.unwhitened), (probes.texts[-1:], probes.unwhitened[-1:])):
            agreement = compare(embedder.embed(texts, options), want)
            assert GATES[manifest.precision].passes(agreement), agreement


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pca", "pca-cor"])
@NORMALIZED
def test_truncated_vectors_equal_a_bundle_of_fewer_dimensions(
    exported: Exported, method: str, normalized: tuple[str, ...]
) -> None:
    texts, options = sentences(30), ("--whitening", method, *normalized)
    cut = exported(*options).encode(texts, truncate_dim=8)
    want = exported(*options, "--dim", 8).encode(texts)
    np.testing.assert_allclose(cut, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["zca", "none"])
def test_truncating_vectors_that_are_not_nested_is_refused(exported: Exported, method: str) -> None:
    encoder = exported("--whitening", method)
    with pytest.raises(UsageError, match="truncate_dim is 8"):
        encoder.encode(["a"], truncate_dim=8)
    with pytest.raises(UsageError, match="truncate_dim is 8"):
        encoder.encode_iter(["a"], truncate_dim=8)
    assert encoder.encode(["a"], truncate_dim=encoder.dimension).shape == (1, encoder.dimension)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save([static()], tmp_path_factory.mktemp("static"))


@pytest.mark.slow
def test_vectors_are_cut_to_the_declared_dimensions(folder: Path, tmp_path: Path) -> None:
    ok("export", folder, "--matryoshka", "16,8", "--out", tmp_path / "bundle")
    published = SentenceTransformer(str(folder), device="cpu")
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.manifest.matryoshka_dimensions == (16, 8)
        for width in (16, 8):
            want = published.encode(TEXTS, truncate_dim=width)
            np.testing.assert_allclose(encoder.encode(TEXTS, truncate_dim=width), want, rtol=0, atol=1e-5)
    ok("export", folder, "--out", tmp_path / "plain")
    with Encoder(tmp_path / "plain") as encoder:
        assert encoder.manifest.matryoshka_dimensions == ()
        with pytest.raises(UsageError, match="--matryoshka 8"):
            encoder.encode(TEXTS, truncate_dim=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--matryoshka", "16,8", "--whitening", "pca"), "16, 8"),
        (("--matryoshka", f"{SIZE + 1},8"), f"1 to {SIZE}"),
        (("--matryoshka", "16;8"), "'16;8'"),
        (("--matryoshka", "0"), "matryoshka is 0"),
    ],
)
def test_dimensions_that_cannot_be_declared_are_refused(
    folder: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in refused("export", folder, *options, "--out", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
def test_dimensions_belong_to_the_layers_that_the_model_was_trained_with(tmp_path: Path) -> None:
    root = save([transformer("bert"), Pooling(SIZE, "mean")], tmp_path / "model")
    options = ("--layers", "0,1", "--whitening", "none", "--matryoshka", "16,8")
    assert "layers" in refused("export", root, *options, "--out", tmp_path / "bundle")
