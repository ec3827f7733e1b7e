"""Test vectors before whitening, and vectors truncated to fewer dimensions, those of Matryoshka loss too."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from support.bundles import copy_bundle, edit_manifest
from support.cli import ok, refused
from support.corpus import sentences
from support.published import SIZE, TEXTS, save, static, transformer
from whiten import BundleError, Encoder, UsageError
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT, scan_graph, with_output
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.engine import Engine
from whiten_runtime.inference.options import EncodeOptions
from whiten_runtime.ort.session import SessionOptions

Exported = Callable[..., Encoder]


@pytest.fixture(scope="module")
def exported(make: Callable[..., Path]) -> Exported:
    """Return a function that opens the small BERT, exported with given options."""
    return lambda *options: Encoder(make(*options))


NORMALIZED = pytest.mark.parametrize("normalized", [(), ("--normalize",)])
RAW = ("--whitening", "none")


@pytest.mark.slow
@NORMALIZED
def test_encode_both_equals_two_bundles(exported: Exported, normalized: tuple[str, ...]) -> None:
    both, raw = exported("--outputs", "both", *normalized), exported(*RAW)
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
def test_a_second_output_that_is_not_there_is_refused(exported: Exported, tmp_path: Path) -> None:
    one = exported(*RAW)
    with pytest.raises(UsageError, match="export it with --outputs both"):
        one.encode_both(["a"])
    copy = copy_bundle(one._bundle.path, tmp_path)
    edit_manifest(copy, lambda manifest: manifest.update(outputs="both"))
    with pytest.raises(BundleError, match="lacks the output unwhitened_embedding of its manifest"):
        Encoder(copy)
    with pytest.raises(BundleError, match="onnxruntime does not accept it"):
        Engine(one._bundle.path / MODEL_FILE, 0, SessionOptions(), "no_such_value")


@pytest.mark.slow
def test_engine_outputs_vectors_before_whitening_of_any_bundle(exported: Exported) -> None:
    """The engine adds the output, which the file does not have."""
    normalised, raw = exported("--normalize", "--dim", 8), exported(*RAW)
    model = normalised._bundle.model
    assert UNWHITENED_OUTPUT not in scan_graph(model).outputs
    engine = Engine(model, normalised.manifest.pad_token_id, SessionOptions(), UNWHITENED_OUTPUT)
    output = EncodeOptions(outputs=(UNWHITENED_OUTPUT,))
    ((_, rows),) = Embedder(normalised._tokenizer, engine).windows(sentences(40), output)
    np.testing.assert_allclose(rows, raw.encode(sentences(40)), atol=1e-6)
    engine.close()


def test_added_output_is_read_by_onnx(tiny_bundle: Path) -> None:
    model = onnx.load_from_string(with_output(tiny_bundle / MODEL_FILE, UNWHITENED_OUTPUT))
    names = ["sentence_embedding", "last_hidden_state"]
    assert [value.name for value in model.graph.output] == [*names, UNWHITENED_OUTPUT]
    assert scan_graph(tiny_bundle / MODEL_FILE).outputs == set(names)
    assert len(model.graph.node) == len(onnx.load(tiny_bundle / MODEL_FILE).graph.node)


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
@pytest.mark.parametrize("method", ["zca", "cholesky", "zca-cor", "none"])
def test_truncating_vectors_that_are_not_nested_is_refused(exported: Exported, method: str) -> None:
    encoder = exported("--whitening", method)
    why = "there is no whitening" if method == "none" else f"the whitening is {method}"
    with pytest.raises(UsageError, match=f"truncate_dim is 8, but {why}"):
        encoder.encode(["a"], truncate_dim=8)
    with pytest.raises(UsageError, match=why):
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
