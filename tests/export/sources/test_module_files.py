"""Test the weights of modules of sentence-transformers: Dense, LayerNorm, layer weights. Nothing needs torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.module_files import write_dense, write_json, write_modules, write_pooling, write_tensors
from whiten import WhitenError
from whiten_export.proof.reference import ACTIVATIONS, Dense, LayerNorm
from whiten_export.sources.checkpoints.module_files import read_dense, read_layer_norm, read_layer_weights
from whiten_export.sources.checkpoints.published import read_published

ROWS = np.random.default_rng(3).normal(size=(5, 4))
TORCH = "torch.nn.modules.activation."


def by_hand(x: np.ndarray, weights: dict[str, np.ndarray], residual: np.ndarray | None = None) -> np.ndarray:
    y = np.tanh(x @ weights["linear.weight"].T.astype(np.float64) + weights.get("linear.bias", 0))
    return y if residual is None else y + x @ residual.T


@pytest.mark.parametrize("bias", [True, False])
def test_dense_is_read_with_and_without_bias(tmp_path: Path, bias: bool) -> None:
    weights = write_dense(tmp_path, 4, 3, bias=bias)
    dense, files = read_dense(tmp_path)
    assert files == (tmp_path / "model.safetensors",)
    assert (dense.bias is None, dense.activation, str(dense)) == (not bias, "Tanh", "Dense(4 -> 3, Tanh)")
    np.testing.assert_allclose(dense(ROWS), by_hand(ROWS, weights), rtol=1e-6)


def test_residual_needs_weights_of_its_own_where_the_width_changes(tmp_path: Path) -> None:
    added = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)
    weights = write_dense(tmp_path / "a", 4, 3, {"residual.weight": added}, use_residual=True)
    np.testing.assert_allclose(read_dense(tmp_path / "a")[0](ROWS), by_hand(ROWS, weights, added), rtol=1e-6)
    weights = write_dense(tmp_path / "b", 4, 4, use_residual=True)
    np.testing.assert_allclose(read_dense(tmp_path / "b")[0](ROWS), by_hand(ROWS, weights, np.eye(4)), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "Identity"])
def test_every_activation_is_read(tmp_path: Path, name: str) -> None:
    write_dense(tmp_path, 4, 3, activation_function=TORCH + name)
    assert read_dense(tmp_path)[0].activation == name


def test_dense_may_have_no_activation(tmp_path: Path) -> None:
    weights = write_dense(tmp_path, 4, 3, bias=False, activation_function="torch.nn.modules.linear.Identity")
    np.testing.assert_allclose(read_dense(tmp_path)[0](ROWS), ROWS @ weights["linear.weight"].T, rtol=1e-6)


def test_several_dense_keep_their_order(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    write_pooling(tmp_path)
    write_dense(tmp_path / "2_Dense", 4, 6)
    write_dense(tmp_path / "3_Dense", 6, 3, activation_function=TORCH + "ReLU", bias=False)
    published = read_published(tmp_path)
    assert list(map(str, published.modules)) == ["Dense(4 -> 6, Tanh)", "Dense(6 -> 3, ReLU)"]
    assert published.files == tuple(tmp_path / f"{index}_Dense" / "model.safetensors" for index in (2, 3))
    assert published.normalize


@pytest.mark.parametrize("state", ["sentence_embedding", None])
def test_dense_of_the_sentence_may_say_so(tmp_path: Path, state: str | None) -> None:
    write_dense(tmp_path, 4, 3, module_input_name="sentence_embedding", module_output_name=state)
    assert isinstance(read_dense(tmp_path)[0], Dense)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"activation_function": "transformers.activations.NewGELUActivation"}, "NewGELUActivation"),
        ({"activation_function": "my_code.Tanh"}, "activation_function 'my_code.Tanh' is not supported"),
        ({"activation_function": TORCH + "PReLU"}, "PReLU' is not supported; wanted Identity, Tanh"),
        ({"activation_function": None}, "activation_function 'None'"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is not sentence_embedding"),
        ({"module_output_name": "token_embeddings"}, "module_output_name is not sentence_embedding"),
        ({"dropout": 0.1}, "has the setting 'dropout', which is not supported"),
    ],
)
def test_dense_that_cannot_be_reproduced_is_refused(tmp_path: Path, settings: dict[str, Any], found: str) -> None:
    write_dense(tmp_path, 4, 3, **settings)
    refused(read_dense, tmp_path, tmp_path / "config.json", found)


ONES = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("tensors", "settings", "found"),
    [
        ({}, {}, "linear.weight is nothing, but its config.json says (3, 4)"),
        ({"linear.weight": ONES}, {}, "linear.bias is nothing, but its config.json says (3,)"),
        ({"linear.weight": ONES.T}, {"bias": False}, "linear.weight is (4, 3), but its config.json says (3, 4)"),
        ({"linear.weight": ONES, "linear.bias": ONES[0]}, {"bias": False}, "has the weight 'linear.bias'"),
        ({"linear.weight": ONES, "extra": ONES}, {"bias": False}, "has the weight 'extra', which is not supported"),
        ({"linear.weight": ONES}, {"bias": False, "use_residual": True}, "residual.weight is nothing"),
        ({"linear.weight": ONES, "residual.weight": ONES}, {"bias": False}, "has the weight 'residual.weight'"),
        ({"linear.weight": ONES}, {"bias": False, "in_features": None}, "linear.weight is (3, 4)"),
        ({"linear.weight": ONES}, {"bias": False, "out_features": "3"}, "linear.weight is (3, 4)"),
    ],
)
def test_weights_that_differ_from_the_settings_are_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], settings: dict[str, Any], found: str
) -> None:
    write_json(tmp_path / "config.json", {"in_features": 4, "out_features": 3} | settings)
    refused(read_dense, tmp_path, write_tensors(tmp_path / "model.safetensors", tensors), found)


def stored(path: Path, dtype: str, data: bytes) -> Path:
    """Write linear.weight, of shape [3, 4], with any type of number."""
    header = json.dumps({"linear.weight": {"dtype": dtype, "shape": [3, 4], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize(("dtype", "kind"), [("F16", np.float16), ("F32", np.float32), ("F64", np.float64)])
def test_weights_become_float32(tmp_path: Path, dtype: str, kind: type) -> None:
    write_dense(tmp_path, 4, 3, bias=False)
    numbers = ROWS[:3].astype(kind)
    stored(tmp_path / "model.safetensors", dtype, numbers.tobytes())
    weight = read_dense(tmp_path)[0].weight
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight, numbers.T.astype(np.float32))


def test_bfloat16_weights_are_read_without_loss(tmp_path: Path) -> None:
    write_dense(tmp_path, 4, 3, bias=False)
    numbers = np.array([1, -2.5, 3e38, 1e-38, 0, -0.0, np.inf, 0.15625, 7, 8, 9, 10], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    stored(tmp_path / "model.safetensors", "BF16", bits.tobytes())
    rounded = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(read_dense(tmp_path)[0].weight, rounded.reshape(3, 4).T)


def test_numbers_of_other_types_are_refused(tmp_path: Path) -> None:
    write_dense(tmp_path, 4, 3, bias=False)
    path = stored(tmp_path / "model.safetensors", "U8", bytes(12))
    refused(read_dense, tmp_path, path, "linear.weight holds U8, which is not supported")


@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 40, b"\x02\x00\x00\x00\x00\x00\x00\x00{}extra"])
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    write_dense(tmp_path, 4, 3)
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(read_dense, tmp_path, tmp_path / "model.safetensors", "copy the model again")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    write_dense(tmp_path, 4, 3)
    (tmp_path / "model.safetensors").unlink()
    refused(read_dense, tmp_path, tmp_path, "has no weights (model.safetensors or pytorch_model.bin)")


def test_layer_norm_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"dimension": 4})
    weight, bias = ROWS[0].astype(np.float32), ROWS[1].astype(np.float32)
    path = write_tensors(tmp_path / "model.safetensors", {"norm.weight": weight, "norm.bias": bias})
    norm, files = read_layer_norm(tmp_path)
    assert (files, norm.epsilon) == ((path,), 1e-5)
    np.testing.assert_array_equal([norm.weight, norm.bias], [weight, bias])
    assert isinstance(norm, LayerNorm)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"dimension": 3}, "norm.weight is (4,), but its config.json says (3,)"),
        ({}, "norm.weight is (4,)"),
    ],
)
def test_layer_norm_of_another_width_is_refused(tmp_path: Path, settings: dict[str, Any], found: str) -> None:
    write_json(tmp_path / "config.json", settings)
    ones = np.ones(4, np.float32)
    path = write_tensors(tmp_path / "model.safetensors", {"norm.weight": ones, "norm.bias": ones})
    refused(read_layer_norm, tmp_path, path, found)


def test_layer_norm_with_unknown_settings_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"dimension": 4, "eps": 0.1})
    ones = np.ones(4, np.float32)
    write_tensors(tmp_path / "model.safetensors", {"norm.weight": ones, "norm.bias": ones})
    refused(read_layer_norm, tmp_path, tmp_path / "config.json", "has the setting 'eps', which is not supported")


@pytest.mark.parametrize("name", ["word_embedding_dimension", "embedding_dimension"])
def test_layer_weights_are_read(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "config.json", {name: 4, "layer_start": 2, "num_hidden_layers": 4})
    write_tensors(tmp_path / "model.safetensors", {"layer_weights": np.array([1, 2, 0.5], np.float32)})
    assert read_layer_weights(tmp_path) == (2, (1.0, 2.0, 0.5), (tmp_path / "model.safetensors",))


@pytest.mark.parametrize(
    ("settings", "weights", "found"),
    [
        ({}, [1, 2, 0.5], "layer_weights is (3,), but its config.json says (9,)"),
        ({"layer_start": 2, "num_hidden_layers": 3}, [1, 2, 0.5], "layer_weights is (3,)"),
        ({"layer_start": 2, "num_hidden_layers": 4}, [1, -2, 1], "sum to 0"),
        ({"layer_start": 2, "num_hidden_layers": 4}, [1, np.nan, 1], "not finite"),
        ({"layer_start": "second", "num_hidden_layers": 4}, [1, 1, 1], "layer_start is 'second'"),
        ({"layer_start": -2, "num_hidden_layers": 0}, [1, 1, 1], "layer_start is -2"),
    ],
)
def test_layer_weights_that_give_no_average_are_refused(
    tmp_path: Path, settings: dict[str, Any], weights: list[float], found: str
) -> None:
    write_json(tmp_path / "config.json", settings)
    write_tensors(tmp_path / "model.safetensors", {"layer_weights": np.array(weights, np.float32)})
    refused(read_layer_weights, tmp_path, tmp_path, found)


def refused(read: Any, folder: Path, path: Path, found: str) -> None:
    """Read a module that must be refused in one line that names the file and what was found."""
    with pytest.raises(WhitenError) as caught:
        read(folder)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert found in message
    assert "\n" not in message
