"""Test bundles that are missing, incomplete, altered, foreign or hostile."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.bundles import contained, edit_graph, edit_manifest, rewrite_file, stored_fields
from whiten import BundleError, Encoder, IntegrityError, UnsafeModelError
from whiten_runtime.bundle.bundle import (
    CLIENT_FILES,
    MODEL_FILE,
    changed_client_files,
    open_bundle,
)
from whiten_runtime.bundle.manifest import read_content, read_manifest

NO_SPACES = ("", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef\n", "g" * 16)
ONTO = {"median_cosine": 1.0, "self_recall": 1.0, "sentences": 1}


def test_manifest_round_trips_through_json(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    (tmp_path / "whiten.json").write_bytes(manifest.to_json())
    assert read_manifest(tmp_path) == manifest
    again = manifest.to_json()
    assert again == read_manifest(tmp_path).to_json()
    assert contained(
        stored_fields(tiny_bundle), json.loads(again)
    )  # fields that later versions added have their defaults


def test_the_manifest_lists_every_file(tiny_bundle: Path) -> None:
    found = {path.relative_to(tiny_bundle).as_posix() for path in tiny_bundle.rglob("*") if path.is_file()}
    assert found - {"whiten.json"} == set(read_manifest(tiny_bundle).files)
    assert [name for name in found if name.endswith(".onnx")] == [MODEL_FILE]


def test_missing_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        open_bundle(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"has no whiten\.json"):
        open_bundle(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="is not a directory"):
        open_bundle(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2), "bundle format 2.*upgrade whiten"),
        (lambda m: m.pop("layers"), "layers"),
        (lambda m: m.update(pooling="sum"), "pooling is 'sum'; wanted mean, cls, .*, or several joined by .*upgrade"),
        (lambda m: m.update(pooling=""), "pooling is ''"),
        (lambda m: m.update(pooling="mean+mean"), "pooling is 'mean.mean'; wanted different modes"),
        (lambda m: m.update(pooling="sif+cls"), "pooling is 'sif.cls'; wanted different modes, and sif alone"),
        (lambda m: m.update(pooling="cls+ mean"), "pooling is ' mean'"),
        (lambda m: m.update(prompts={"query": None}), "prompts"),
        (lambda m: m.update(truncation_side="middle"), "truncation_side"),
        (lambda m: m.update(similarity_fn_name="hamming"), "similarity_fn_name"),
        (lambda m: m.update(dimension="many"), "dimension"),
        (lambda m: m.update(dimension=0), "dimension is 0"),
        (lambda m: m.update(pad_token_id=-1), "pad_token_id"),
        (lambda m: m.update(pad_token_id=1 << 40), "pad_token_id is 1099511627776; wanted 0 to"),
        *((lambda m, id=id: m.update(space=id), "space is .*wanted 16 hexadecimal digits") for id in NO_SPACES),
        *((lambda m, id=id: m["whitening"].update(alignment=ONTO | {"space": id}), "space is ") for id in NO_SPACES),
        (lambda m: m["files"].pop(MODEL_FILE), MODEL_FILE),
        (lambda m: m["files"].update({"../../x": m["files"][MODEL_FILE]}), "leave the bundle"),
        (lambda m: m["files"].update({"/etc/passwd": m["files"][MODEL_FILE]}), "leave the bundle"),
        (lambda m: m["files"].update({"C:\\x": m["files"][MODEL_FILE]}), "leave the bundle"),
        (lambda m: m["files"].update({"a\nb": m["files"][MODEL_FILE]}), r"'a\\nb' has control characters"),
        (lambda m: m["files"].update({"a\0": m["files"][MODEL_FILE]}), r"'a\\x00' has control characters"),
        (lambda m: m["files"].update({"\x1b[2J": m["files"][MODEL_FILE]}), r"'\\x1b\[2J' has control characters"),
    ],
)
def test_invalid_manifests_are_refused(bundle: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit_manifest(bundle, change)
    with pytest.raises(BundleError, match=message) as caught:
        open_bundle(bundle)
    assert "whiten.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"format_version": "1"}'])
def test_malformed_manifests_are_refused(bundle: Path, content: bytes) -> None:
    (bundle / "whiten.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"whiten\.json"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", [MODEL_FILE, "tokenizer.json", "probes.safetensors"])
def test_altered_truncated_and_missing_files_are_refused(bundle: Path, name: str) -> None:
    path = bundle / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="SHA-256 differs") as caught:
        Encoder(bundle)
    assert name in str(caught.value)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(IntegrityError, match="bytes, but") as caught:
        Encoder(bundle, verify_hashes=False)
    assert name in str(caught.value)
    path.unlink()
    with pytest.raises(BundleError, match="missing") as caught:
        Encoder(bundle)
    assert name in str(caught.value)


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


def _point_outside(model: onnx.ModelProto, location: str) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


@pytest.mark.parametrize("location", ["/etc/passwd", "../tokenizer.json", "a/b", "unlisted.bin", "..", ""])
def test_weights_outside_the_bundle_are_refused(bundle: Path, location: str) -> None:
    edit_graph(bundle, lambda model: _point_outside(model, location))
    with pytest.raises(UnsafeModelError, match="not a file of the bundle"):
        Encoder(bundle)


@pytest.mark.parametrize("most", [-5, 0, 1 << 40])
def test_a_number_of_characters_that_no_text_has_is_refused(bundle: Path, most: int) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(max_characters=most))
    with pytest.raises(BundleError, match=f"max_characters is {most}; wanted 1 to"):
        Encoder(bundle)


@pytest.mark.parametrize(
    ("versions", "named"),
    [({"tokenizers": "999.1.0"}, "tokenizers 999.1.0"), ({"tokenizers": "0.1.0"}, None), ({}, None)],
)
def test_a_tokenizer_of_a_newer_version_names_it(bundle: Path, versions: dict[str, str], named: str | None) -> None:
    """A part that the installed version does not know is no damage, and no export mends it."""
    content = json.loads((bundle / "tokenizer.json").read_text("utf-8"))
    content["pre_tokenizer"] = {"type": "OfTomorrow"}
    rewrite_file(bundle, "tokenizer.json", json.dumps(content).encode())
    edit_manifest(bundle, lambda manifest: manifest.update(versions=versions))
    with pytest.raises(BundleError, match="not a tokenizer") as error:
        Encoder(bundle)
    assert "is installed" in str(error.value) if named else "is installed" not in str(error.value)
    assert named is None or named in str(error.value)


def test_graph_that_onnxruntime_rejects_is_a_bundle_error(bundle: Path) -> None:
    def break_it(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Erf"
        model.graph.node[0].input.extend(["input_ids"] * 3)

    edit_graph(bundle, break_it)
    with pytest.raises(BundleError, match="does not accept it"):
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
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{}", "not a tokenizer"),
        ("probes.json", b'{"texts": ["only one"]}', "its probes are 1 texts and vectors of shapes"),
        ("probes.json", b'{"texts": ["\xff\xfe"]}', "its probes are damaged"),
        ("probes.json", b'{"texts": [1]}', "its probes are damaged"),
        ("probes.json", b'{"texts":' + b"[" * 100_000, "its probes are damaged"),
        ("probes.safetensors", b"nonsense", "its probes are damaged"),
    ],
)
def test_files_that_are_not_what_they_are_named_are_refused(
    bundle: Path, name: str, content: bytes, message: str
) -> None:
    rewrite_file(bundle, name, content)
    with pytest.raises(BundleError, match=message) as caught, Encoder(bundle) as encoder:
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
