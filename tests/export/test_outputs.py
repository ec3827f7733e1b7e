"""Test vectors before whitening, and vectors truncated to fewer dimensions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.bundles import copy_bundle, edit_manifest
from support.corpus import sentences
from whiten import BundleError, Encoder, UsageError
from whiten_export.pipeline.export_model import export_bundle
from whiten_export.pipeline.recipe import Recipe
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT, scan_graph, with_output
from whiten_runtime.inference.embedder import Embedder, EncodeOptions
from whiten_runtime.inference.engine import Engine
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.maps import Method

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def make(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Encoder]:
    made: dict[tuple[tuple[str, object], ...], Encoder] = {}

    def get(**choices: object) -> Encoder:
        key = tuple(choices.items())
        if key not in made:
            corpus = None if choices.get("whitening", "pca") is None else (str(corpus_file),)
            recipe = Recipe.of(str(checkpoint("bert")), layers=(1, 4), corpus=corpus, **choices)  # type: ignore[arg-type]
            made[key] = Encoder(export_bundle(recipe, tmp_path_factory.mktemp("bundles") / "b").path)
        return made[key]

    return get


@pytest.mark.parametrize("normalize", [False, True])
def test_encode_both_equals_two_bundles(make: Callable[..., Encoder], normalize: bool) -> None:
    both, raw = make(outputs="both", normalize=normalize), make(whitening=None)
    texts = ["", *sentences(60)]
    white, unwhitened = both.encode_both(texts)
    np.testing.assert_array_equal(white, both.encode(texts))
    np.testing.assert_allclose(unwhitened, raw.encode(texts), atol=1e-6)
    alone = both.encode_both(texts[3])
    for vector, row in zip(alone, (white[3], unwhitened[3]), strict=True):
        assert vector.shape == row.shape
        np.testing.assert_allclose(vector, row, atol=1e-5 * np.abs(row).max())
    assert both.verify().min_cosine > 0.999999


def test_a_second_output_that_is_not_there_is_refused(make: Callable[..., Encoder], tmp_path: Path) -> None:
    one = make(whitening=None)
    with pytest.raises(UsageError, match="export it with --outputs both"):
        one.encode_both(["a"])
    copy = copy_bundle(one._bundle.path, tmp_path)
    edit_manifest(copy, lambda manifest: manifest.update(outputs="both"))
    with pytest.raises(BundleError, match="lacks the output unwhitened_embedding of its manifest"):
        Encoder(copy)
    with pytest.raises(BundleError, match="onnxruntime does not accept it"):
        Engine(one._bundle.path / MODEL_FILE, 0, SessionOptions(), "no_such_value")


def test_engine_outputs_vectors_before_whitening_of_any_bundle(make: Callable[..., Encoder]) -> None:
    """The engine adds the output, which the file does not have."""
    normalised, raw = make(normalize=True, dim=8), make(whitening=None)
    model = normalised._bundle.model
    assert UNWHITENED_OUTPUT not in scan_graph(model).outputs
    engine = Engine(model, normalised.manifest.pad_token_id, SessionOptions(), UNWHITENED_OUTPUT)
    output = EncodeOptions(engine.width_of(UNWHITENED_OUTPUT), values=(UNWHITENED_OUTPUT,))
    ((_, rows),) = Embedder(normalised._tokenizer, engine).windows(sentences(40), output)
    np.testing.assert_allclose(rows, raw.encode(sentences(40)), atol=1e-6)
    engine.close()


def test_added_output_is_read_by_onnx(tiny_bundle: Path) -> None:
    model = onnx.load_from_string(with_output(tiny_bundle / MODEL_FILE, UNWHITENED_OUTPUT))
    names = ["sentence_embedding", "last_hidden_state"]
    assert [value.name for value in model.graph.output] == [*names, UNWHITENED_OUTPUT]
    assert scan_graph(tiny_bundle / MODEL_FILE).outputs == set(names)
    assert len(model.graph.node) == len(onnx.load(tiny_bundle / MODEL_FILE).graph.node)


@pytest.mark.parametrize("method", ["pca", "pca-cor"])
@pytest.mark.parametrize("normalize", [False, True])
def test_truncated_vectors_equal_a_bundle_of_fewer_dimensions(
    make: Callable[..., Encoder], method: Method, normalize: bool
) -> None:
    texts = sentences(30)
    cut = make(whitening=method, normalize=normalize).encode(texts, truncate_dim=8)
    want = make(whitening=method, normalize=normalize, dim=8).encode(texts)
    np.testing.assert_allclose(cut, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("method", ["zca", "cholesky", "zca-cor", None])
def test_truncating_vectors_that_are_not_nested_is_refused(make: Callable[..., Encoder], method: Method | None) -> None:
    encoder = make(whitening=method)
    why = "there is no whitening" if method is None else f"the whitening is {method}"
    with pytest.raises(UsageError, match=f"truncate_dim is 8, but {why}"):
        encoder.encode(["a"], truncate_dim=8)
    with pytest.raises(UsageError, match=why):
        encoder.encode_iter(["a"], truncate_dim=8)
    assert encoder.encode(["a"], truncate_dim=encoder.dimension).shape == (1, encoder.dimension)
