"""Test bundles that are missing, incomplete, altered, foreign or hostile."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.bundles import edit_graph, edit_manifest, rewrite_file
from whiten import BundleError, Encoder, IntegrityError
from whiten_runtime.bundle.bundle import (
    CLIENT_FILES,
    MODEL_FILE,
    changed_client_files,
    open_bundle,
)
from whiten_runtime.bundle.manifest import read_content, read_manifest

ONTO = {"median_cosine": 1.0, "self_recall": 1.0, "sentences": 1}


def test_manifest_round_trips_through_json(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    (tmp_path / "whiten.json").write_bytes(manifest.to_json())
    assert read_manifest(tmp_path) == manifest


def test_the_manifest_lists_every_file(tiny_bundle: Path) -> None:
    found = {path.relative_to(tiny_bundle).as_posix() for path in tiny_bundle.rglob("*") if path.is_file()}
    assert found - {"whiten.json"} == set(read_manifest(tiny_bundle).files)
    assert [name for name in found if name.endswith(".onnx")] == [MODEL_FILE]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.update(format_version=2), "format 2"),
        (lambda m: m.pop("layers"), "layers"),
        *(
            (lambda m, value=value: m.update(pooling=value), "pooling")
            for value in ("sum", "", "mean+mean", "sif+cls", "cls+ mean")
        ),
        (lambda m: m.update(prompts={"query": None}), "prompts"),
        (lambda m: m.update(truncation_side="middle"), "truncation_side"),
        (lambda m: m.update(similarity_fn_name="hamming"), "similarity_fn_name"),
        (lambda m: m.update(dimension="many"), "dimension"),
        (lambda m: m.update(dimension=0), "dimension"),
        (lambda m: m.update(pad_token_id=-1), "pad_token_id"),
        (lambda m: m.update(pad_token_id=1 << 40), "pad_token_id"),
        *(
            (lambda m, space=space: m["whitening"].update(alignment=ONTO | {"space": space}), "space")
            for space in ("", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef\n")
        ),
        (lambda m: m.update(space="g" * 16), "space"),
        (lambda m: m["files"].pop(MODEL_FILE), MODEL_FILE),
    ],
)
def test_invalid_manifests_are_refused(bundle: Path, change: Callable[[dict[str, Any]], object], named: str) -> None:
    edit_manifest(bundle, change)
    with pytest.raises(BundleError, match=named) as caught:
        open_bundle(bundle)
    assert "whiten.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [MODEL_FILE, "tokenizer.json", "probes.safetensors"])
def test_missing_files_are_refused(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    for verify_hashes in (True, False):
        with pytest.raises(BundleError, match=name):
            Encoder(bundle, verify_hashes=verify_hashes)


@pytest.mark.parametrize("name", sorted(CLIENT_FILES))
def test_files_of_other_programs_may_be_rewritten_and_added_but_not_missing(bundle: Path, name: str) -> None:
    expected = Encoder(bundle).encode(["a text"])
    files = read_manifest(bundle).files
    assert changed_client_files(bundle, files) == []
    (bundle / name).write_text('{"rewritten": "by a program that saved the model"}', "utf-8")
    with Encoder(bundle) as encoder:
        assert np.array_equal(encoder.encode(["a text"]), expected)
        encoder.verify()
    assert changed_client_files(bundle, files) == [name]
    (bundle / name).unlink()
    if name in files:
        with pytest.raises(BundleError, match=f"{name}: missing"):
            Encoder(bundle)


def test_a_client_file_that_is_altered_without_another_size_differs(bundle: Path) -> None:
    path = bundle / "modules.json"
    path.write_bytes(path.read_bytes().replace(b"0", b"7", 1))
    assert changed_client_files(bundle, read_manifest(bundle).files) == ["modules.json"]


def test_hash_check_can_be_skipped(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["files"][MODEL_FILE].update(sha256="0" * 64))
    with pytest.raises(IntegrityError):
        Encoder(bundle)
    with Encoder(bundle, verify_hashes=False) as encoder:
        assert encoder.encode("text").shape == (32,)


def test_graph_that_onnxruntime_rejects_is_a_bundle_error(bundle: Path) -> None:
    edit_graph(bundle, lambda model: model.graph.node[0].input.extend(["input_ids"] * 9))
    with pytest.raises(BundleError):
        Encoder(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.graph.input.append(_input("token_type_ids")), "not input_ids and attention_mask"),
        (lambda model: model.graph.output.pop(0), "has no output sentence_embedding"),
        (lambda model: _set_width(model, 1), "gives 1 dimensions, but the manifest says 32"),
    ],
)
def test_graphs_with_other_inputs_outputs_or_width_are_refused(
    bundle: Path, change: Callable[[onnx.ModelProto], object], message: str
) -> None:
    edit_graph(bundle, change)
    with pytest.raises(BundleError, match=message):
        Encoder(bundle)


def _input(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch_size", "sequence_length"])


def _set_width(model: onnx.ModelProto, width: int) -> None:
    """Make the last weights narrower, like those of another model."""
    for initializer in model.graph.initializer:
        if initializer.name == "whitening.weight":
            weight = onnx.numpy_helper.to_array(initializer)[:, :width]
            initializer.CopyFrom(onnx.numpy_helper.from_array(weight.copy(), initializer.name))
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[-1].dim_value = width


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("probes.json", b'{"texts": ["only one"]}'),
        ("probes.json", b'{"texts": ["\xff\xfe"]}'),
        ("probes.json", b'{"texts": [1]}'),
        ("probes.json", b'{"texts":' + b"[" * 100_000),
    ],
)
def test_files_that_are_not_what_they_are_named_are_refused(bundle: Path, name: str, content: bytes) -> None:
    rewrite_file(bundle, name, content)
    with pytest.raises(BundleError) as caught, Encoder(bundle) as encoder:
        encoder.verify()
    assert "\n" not in str(caught.value)


def test_a_bundle_that_is_replaced_while_it_is_opened_is_opened_again(
    bundle: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, before = read_content, bundle.with_name("before")

    def replaced_afterwards(path: Path) -> bytes:
        content = whole(path)
        if not before.exists():
            path.rename(before)
            shutil.copytree(golden / "bundle-v1-int8", path)
        return content

    monkeypatch.setattr("whiten_runtime.bundle.bundle.read_content", replaced_afterwards)
    assert open_bundle(bundle).manifest.name == "bundle-v1-int8"
