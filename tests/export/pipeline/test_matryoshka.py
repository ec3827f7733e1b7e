"""Test that the dimensions of Matryoshka loss can be declared for a folder that the catalogue does not know."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from support.cli import ok, refused
from support.published import SIZE, TEXTS, save, static, transformer
from whiten import Encoder, UsageError


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
        with pytest.raises(UsageError, match="export with --matryoshka 8 if the model was trained for it"):
            encoder.encode(TEXTS, truncate_dim=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--matryoshka", "16,8", "--whitening", "pca"), "matryoshka is 16, 8, but a whitening mixes"),
        (("--matryoshka", f"{SIZE + 1},8"), f"but the model's vectors have {SIZE} dimensions; wanted 1 to {SIZE}"),
        (("--matryoshka", "16;8"), "matryoshka is '16;8'; wanted whole numbers separated by commas, such as 256,128"),
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
    error = refused("export", root, *options, "--out", tmp_path / "bundle")
    assert "layers or pooling are not those that the model was trained with" in error
