"""Test that what a manifest says against the other files of its bundle is refused in one line, with both values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from whiten_runtime import BundleError, Encoder, IntegrityError, VectorWhitener
from whiten_runtime.bundle.array_shapes import array_shapes
from whiten_runtime.bundle.bundle import MODEL_FILE, PROBE_VECTORS_FILE, PROBES_FILE, WHITENING_FILE, open_bundle
from whiten_runtime.bundle.client_files import CLIENT_FILES
from whiten_runtime.bundle.consistency import CLIENT_CONFIGS, in_one_line
from whiten_runtime.bundle.cross_check import check_consistency
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.bundle.space import earlier_ids, space_id

Change = Callable[[dict[str, Any]], object]

FP32, INT8, VECTORS, STEPS = "bundle-v1", "bundle-v1-int8", "bundle-v1-vectors", "bundle-v1-vectors-int8"
"""The golden bundles: layers 1 and 4 whitened; layers 0 and 2 in int8 with both outputs and norm 1; of vectors."""


def put(**fields: Any) -> Change:
    return lambda manifest: manifest.update(fields)


def put_in(record: str, **fields: Any) -> Change:
    return lambda manifest: manifest[record].update(fields)


CHANGES: list[tuple[str, Change, str]] = [
    (FP32, put(max_seq_length=5), "max_seq_length is 5, but the graph has a table of 48 positions"),
    (FP32, put(max_seq_length=64), "max_seq_length is 64, but the graph has a table of 48 positions"),
    (FP32, put(pad_token_id=999_999), "pad_token_id is 999999, but the graph has embeddings of 1200 tokens"),
    (INT8, put(pad_token_id=1200), "pad_token_id is 1200, but the graph has embeddings of 1200 tokens"),
    (FP32, put(pad_token_id=2**63), "pad_token_id is 9223372036854775808, but the graph has embeddings of 1200 tokens"),
    (FP32, put(pad_token_id=3), r"pad_token_id is 3, but the padding token of tokenizer_config\.json has the id 0"),
    (FP32, put(normalize=True), "normalize is true, but the graph divides by no norm at its end"),
    (INT8, put(normalize=False), "normalize is false, but the graph ends with a division by the norm"),
    (VECTORS, put(normalize=True), "normalize is true, but the graph divides by no norm"),
    (FP32, put(pooling="cls"), 'pooling is "cls", but the graph\'s is "mean"'),
    (FP32, put(pooling="cls+mean"), 'pooling is "cls.mean", but the graph\'s is "mean"'),
    (FP32, put(layers=[1, 3]), r"layers is \[1,3\], but the graph pools the layers \[1,4\]"),
    (INT8, put(layers=[2]), r"layers is \[2\], but the graph pools the layers \[0,2\]"),
    (FP32, put(layers=[4, 1]), r"layers is \[4,1\], but the graph pools the layers \[1,4\]"),
    (FP32, put(layers=[1, 9]), r"layers is \[1,9\], but .*; layers is \[1,9\], but source.num_hidden_layers is 4"),
    (FP32, put_in("source", num_hidden_layers=3), r"layers is \[1,4\], but source.num_hidden_layers is 3"),
    (FP32, put(precision="int8"), 'precision is "int8", but the graph holds 25 weights of "fp32"'),
    (FP32, put(precision="fp16"), 'precision is "fp16", but the graph holds 25 weights of "fp32"'),
    (INT8, put(precision="fp32"), 'precision is "fp32", but the graph holds 35 weights of "int8"'),
    (
        FP32,
        put(
            quantization=dict.fromkeys(
                ("constant_scales", "token_scales", "far_min_cosine", "far_mean_cosine", "token_min_cosine"), 1
            )
        ),
        'precision is "fp32", but quantization describes an int8 graph',
    ),
    (INT8, put(target="cuda"), 'target is "cuda", but precision is int8, which is for CPUs'),
    (VECTORS, put(target="cuda"), 'target is "cuda", but input is vectors, whose graphs are for CPUs'),
    (FP32, put(include_prompt=False), "include_prompt is false, but the graph pools the tokens of a prompt"),
    (FP32, put(parity=None), "parity is null, but every finished bundle was compared with its reference"),
    (VECTORS, put(parity=None), "parity is null, but"),
    (FP32, put(whitening=None), "whitening is null, but the graph has Sub and MatMul with whitening.mean"),
    (
        FP32,
        put(dimension=16),
        r"\[unwhitened_dimension, dimension\] is \[32,16\], but the graph's whitening.weight has",
    ),
    (FP32, put(unwhitened_dimension=64), r"\[64,32\], but the graph's whitening.mean has shape \[32\]"),
    (FP32, put_in("source", hidden_size=64), r"\[64,32\], but the graph's whitening.mean has shape \[32\]"),
    (VECTORS, put(dimension=5), r"\[12,5\], but the graph's whitening.weight has shape \[12, 6\]"),
    (FP32, put(outputs="both"), 'outputs is "both", but the graph gives "whitened"'),
    (INT8, put(outputs="whitened"), 'outputs is "whitened", but the graph gives "both"'),
    (VECTORS, put(vectors="int8"), 'vectors is "int8", but the graph ends with vectors of "float32"'),
    (STEPS, put(vectors="float32"), 'vectors is "float32", but the graph ends with vectors of "int8"'),
    (FP32, put(opset=18), "opset is 18, but the graph is of opset 20"),
    (FP32, put(truncation_side="left"), r'truncation_side is "left", but tokenizer_config\.json says "right"'),
    (FP32, put(similarity_fn_name="dot"), 'similarity_fn_name is "dot", but config_sentence_transformers.json says'),
    (FP32, put(prompts={"query": "q: "}), r'prompts is {"query":"q: "}, but config_sentence_transformers.json says {}'),
    (FP32, put(matryoshka_dimensions=[64]), r"matryoshka_dimensions is \[64\], but dimension is 32"),
    (
        FP32,
        put(modules=["Dense(32 -> 64, Tanh)"], unwhitened_dimension=64),
        r"\[64,32\], but the graph's whitening.mean",
    ),
    (STEPS, put(dimension=7), r"but the graph's whitening.weight has shape \[12, 8\]"),
    (STEPS, put_in("whitening", method="zca"), 'space is "1d888074afb2c667", but that of its layers, .* is "'),
    (STEPS, put_in("source", weights_sha256="0" * 64), 'space is "1d888074afb2c667", but that of its layers, .* is "'),
    (FP32, lambda manifest: manifest["files"].pop(PROBES_FILE), f"files lacks {PROBES_FILE}"),
    (
        FP32,
        lambda manifest: manifest["files"].pop(PROBE_VECTORS_FILE),
        f"not a file of this bundle|{PROBE_VECTORS_FILE}",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_every_contradiction_is_refused_in_one_line(
    golden: Path, tmp_path: Path, name: str, change: Change, message: str
) -> None:
    bundle = copy_bundle(golden / name, tmp_path)
    edit_manifest(bundle, change)
    opened = VectorWhitener if read_manifest(bundle).input == "vectors" else Encoder
    for verify_hashes in (True, False):
        with pytest.raises(BundleError, match=message) as caught:
            opened(bundle, verify_hashes=verify_hashes)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [FP32, INT8, VECTORS, STEPS])
def test_bundles_without_contradictions_open(golden: Path, name: str) -> None:
    check_consistency(open_bundle(golden / name))


def test_prompts_can_be_edited_together_with_the_file_that_repeats_them(tmp_path: Path, tiny_bundle: Path) -> None:
    """As docs/bundle-format.md says; the hash in `files` may stay, since other programs write that file anew."""
    bundle = copy_bundle(tiny_bundle, tmp_path)
    written = json.loads((bundle / MANIFEST_FILE).read_bytes())
    fields = {name: value for name, value in written.items() if name not in ("manifest_sha256", "space")}
    (bundle / MANIFEST_FILE).write_text(json.dumps(fields | {"prompts": {"query": "q: "}}))
    with pytest.raises(IntegrityError, match=r"prompts is .*, but config_sentence_transformers\.json says {}"):
        Encoder(bundle)
    repeated = bundle / "config_sentence_transformers.json"
    repeated.write_text(json.dumps(json.loads(repeated.read_bytes()) | {"prompts": {"query": "q: "}}))
    with Encoder(bundle) as encoder:
        assert encoder.prompts == {"query": "q: "}


def test_the_files_that_repeat_the_manifest_are_client_files() -> None:
    assert set(CLIENT_CONFIGS) < CLIENT_FILES


def test_the_length_is_held_against_client_files_where_no_table_of_positions_tells(
    golden: Path, tmp_path: Path
) -> None:
    bundle = copy_bundle(golden / FP32, tmp_path)
    model = onnx.load(bundle / MODEL_FILE)
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace("embeddings.positions", "rows")
    for node in model.graph.node:
        node.input[:] = [name.replace("embeddings.positions", "rows") for name in node.input]
    rewrite_file(bundle, MODEL_FILE, model.SerializeToString())
    Encoder(bundle)
    edit_manifest(bundle, put(max_seq_length=5))
    with pytest.raises(IntegrityError, match=r"max_seq_length is 5, but sentence_bert_config\.json says 48"):
        Encoder(bundle)
    edit_manifest(bundle, put(max_seq_length=64))
    with pytest.raises(
        IntegrityError, match=r"; max_seq_length is 64, but config\.json says max_position_embeddings 48"
    ):
        Encoder(bundle)


def test_client_files_that_another_program_wrote_anew_contradict_nothing(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / FP32, tmp_path)
    (bundle / "sentence_bert_config.json").write_text('{"max_seq_length": 16}', "utf-8")
    (bundle / "config_sentence_transformers.json").write_text('{"prompts": {"a": "b"}}', "utf-8")
    for name in ("config.json", "tokenizer_config.json", "1_Pooling/config.json"):
        (bundle / name).write_text("no object", "utf-8")
    with Encoder(bundle) as encoder:
        assert encoder.max_seq_length == 48


SEPARATE = {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}


def test_weights_that_transformers_js_would_miss_are_refused(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / FP32, tmp_path)
    config = json.loads((bundle / "config.json").read_bytes())
    rewrite_file(bundle, "config.json", json.dumps(config | {"transformers.js_config": SEPARATE}).encode())
    message = r"files lack onnx/model\.onnx_data, but config\.json says use_external_data_format \{\"model\.onnx\":1\}"
    with pytest.raises(IntegrityError, match=message) as caught:
        Encoder(bundle)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "found",
    [
        {"dtype": "fp32"},
        {"dtype": "q8", "use_external_data_format": {"model_q4.onnx": 1}},
        {"use_external_data_format": True},
        [],
        None,
    ],
)
def test_what_a_source_told_transformers_js_contradicts_nothing(golden: Path, tmp_path: Path, found: Any) -> None:
    """Older bundles have it from the config of their source."""
    bundle = copy_bundle(golden / FP32, tmp_path)
    config = json.loads((bundle / "config.json").read_bytes())
    rewrite_file(bundle, "config.json", json.dumps(config | {"transformers.js_config": found}).encode())
    with Encoder(bundle) as encoder:
        assert encoder.max_seq_length == 48


def change_probes(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    arrays = load_file(bundle / PROBE_VECTORS_FILE)
    change(arrays)
    rewrite_file(bundle, PROBE_VECTORS_FILE, save(arrays))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda probes: probes.update(embeddings=probes["embeddings"][:, :8].copy()), r"dimension is 32, but .* 8\]"),
        (
            lambda probes: probes.update(unwhitened=probes["unwhitened"][1:].copy()),
            r"unwhitened_dimension is 32, but .*",
        ),
        (lambda probes: probes.update(embeddings=probes["embeddings"].astype(np.float32)), r"holds embeddings of F32"),
        (lambda probes: probes.pop("unwhitened"), "holds unwhitened of nothing"),
    ],
)
def test_probes_of_other_shapes_are_refused_when_a_bundle_is_opened(
    golden: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    bundle = copy_bundle(golden / FP32, tmp_path)
    change_probes(bundle, change)
    with pytest.raises(IntegrityError, match=r"probes\.json has 30 texts, and .*" + message):
        Encoder(bundle)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_probes_that_are_not_finite_are_refused(golden: Path, tmp_path: Path, value: float) -> None:
    bundle = copy_bundle(golden / VECTORS, tmp_path)

    def spoil(arrays: dict[str, Any]) -> None:
        arrays["embeddings"][3, 1] = value

    change_probes(bundle, spoil)
    with (
        VectorWhitener(bundle) as whitener,
        pytest.raises(BundleError, match="embeddings of its probes are not finite"),
    ):
        whitener.verify()


def test_a_whitening_of_another_width_is_refused(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / FP32, tmp_path)
    arrays = load_file(bundle / WHITENING_FILE)
    rewrite_file(bundle, WHITENING_FILE, save(arrays | {"W": arrays["W"][:, :7].copy()}))
    with pytest.raises(IntegrityError, match=r"is \[32,32\], but whitening.safetensors holds W of F64 \[32, 7\]"):
        Encoder(bundle)


@pytest.mark.parametrize("content", [b"", b"\x05\0\0\0\0\0\0\0[]", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}"])
def test_files_that_hold_no_arrays_are_refused_or_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    if content.endswith(b"{}"):
        assert array_shapes(path) == {}
    else:
        with pytest.raises(BundleError, match=r"x\.safetensors: is damaged"):
            array_shapes(path)


def test_shapes_are_those_that_safetensors_reads(golden: Path) -> None:
    for path in golden.rglob("*.safetensors"):
        read = {name: list(array.shape) for name, array in load_file(path).items()}
        assert {name: list(array.shape) for name, array in array_shapes(path).items()} == read


def test_ids_of_spaces_that_earlier_versions_computed_are_taken(golden: Path) -> None:
    """Version d8bc023 knew no maximum length and counted layers without a weight."""
    import msgspec

    manifest = read_manifest(golden / FP32)
    unweighted = msgspec.structs.replace(manifest, layers=(0, 1, 4), layer_weights=(0.0, 1.0, 1.0))
    assert space_id(manifest) in earlier_ids(manifest)
    assert len(earlier_ids(manifest)) == 2
    assert len(earlier_ids(unweighted)) == 4
    assert space_id(msgspec.structs.replace(manifest, pooling="cls")) not in earlier_ids(manifest)


@pytest.mark.parametrize("size", [0, 1 << 40])
def test_probes_that_were_replaced_since_are_not_read_without_a_bound(golden: Path, tmp_path: Path, size: int) -> None:
    bundle = open_bundle(copy_bundle(golden / FP32, tmp_path))
    with (bundle.path / PROBES_FILE).open("wb") as file:
        file.truncate(size)
    with pytest.raises(BundleError, match=r"probes\.json has 16,777,216 at most" if size else "probes are damaged"):
        check_consistency(bundle)


def test_only_the_first_contradictions_are_shown() -> None:
    assert in_one_line(["a", "b"]) == "a; b"
    assert in_one_line([*"abcde"]) == "a; b; c; and 2 more"


def test_the_pad_token_is_known_by_its_own_text(golden: Path, tmp_path: Path) -> None:
    """A padding token that the vocabulary lacks proves nothing."""
    bundle = copy_bundle(golden / FP32, tmp_path)
    config = json.loads((bundle / "tokenizer_config.json").read_bytes())
    rewrite_file(bundle, "tokenizer_config.json", json.dumps(config | {"pad_token": "[NOWHERE]"}).encode())
    Encoder(bundle)
    rewrite_file(bundle, "tokenizer_config.json", json.dumps(config | {"pad_token": "[SEP]"}).encode())
    with pytest.raises(IntegrityError, match="pad_token_id is 0, but the padding token of tokenizer_config.json has"):
        Encoder(bundle)
