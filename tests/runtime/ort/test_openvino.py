"""Test OpenVINO's plugin; what is refused is tested without it."""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from whiten import Encoder, MissingPackageError, ProviderError, UsageError, VectorWhitener
from whiten_runtime.ort import openvino
from whiten_runtime.ort.openvino import (
    check_bfloat16,
    check_bundle_precision,
    plugin_config,
    register_plugin,
    wants_bfloat16,
)
from whiten_runtime.ort.providers import providers_for

DATA = Path(__file__).parents[2] / "data"
OPENVINO, CPU = "OpenVINOExecutionProvider", "CPUExecutionProvider"
HINT = "INFERENCE_PRECISION_HINT"
NO_DEVICES = SimpleNamespace(get_ep_devices=list, get_available_providers=lambda: [CPU], __version__="1.20")

plugin = pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="needs OpenVINO's plugin: pip install 'whiten[openvino]'"
)


def test_properties_are_exact_and_leave_threads_untied() -> None:
    properties = {HINT: "f32", "ENABLE_CPU_PINNING": "NO", "INFERENCE_NUM_THREADS": "3"}
    assert json.loads(plugin_config({}, 3)) == {"CPU": properties}
    given = {HINT: "bf16", "INFERENCE_NUM_THREADS": 1}
    assert json.loads(plugin_config(given, 3)) == {"CPU": {**properties, HINT: "bf16", "INFERENCE_NUM_THREADS": "1"}}


@pytest.mark.parametrize(
    ("features", "capabilities"),
    [
        (("AVX2", "AVX-512", "VNNI"), ("FP32", "BF16")),
        ((), ("FP32", "INT8")),
        (("BF16",), ("FP32", "INT8")),
    ],
)
def test_bfloat16_is_refused_without_hardware(features: tuple[str, ...], capabilities: tuple[str, ...]) -> None:
    with pytest.raises(ProviderError, match="AMX-BF16"):
        check_bfloat16(features, capabilities)


def test_bfloat16_is_taken_where_the_processor_has_it() -> None:
    check_bfloat16(("AVX-512", "BF16", "AMX"), ("FP32", "BF16"))
    check_bfloat16((), ("BF16",))  # a system that does not list instruction sets


def test_bfloat16_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "processor", lambda: SimpleNamespace(features=("AVX2", "VNNI")))
    with pytest.raises(ProviderError, match="only AVX2, VNNI"):
        Encoder(DATA / "bundle-v1", device="openvino:bf16")


def test_other_precisions_are_refused() -> None:
    with pytest.raises(UsageError, match="'f16'; wanted f32 or bf16"):
        Encoder(DATA / "bundle-v1", [(OPENVINO, {HINT: "f16"})])


def test_int8_bundles_are_refused() -> None:
    with pytest.raises(ProviderError, match="float32 bundle"):
        Encoder(DATA / "bundle-v1-int8", device="openvino")
    check_bundle_precision("int8", providers_for(device="cpu"))
    check_bundle_precision("fp32", providers_for(device="openvino"))


def test_missing_plugin_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"from the clone: .*\[openvino\]"):
        register_plugin(NO_DEVICES, providers_for(device="openvino"))
    assert not register_plugin(NO_DEVICES, providers_for(device="cpu"))
    built_in = SimpleNamespace(get_available_providers=lambda: [OPENVINO, CPU])
    assert not register_plugin(built_in, [(OPENVINO, {"device_type": "GPU"})])


def test_old_onnxruntime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    with pytest.raises(ProviderError, match=r"onnxruntime>=1\.23"):
        register_plugin(NO_DEVICES, [OPENVINO])


@pytest.mark.parametrize("providers", [[CPU, OPENVINO], [OPENVINO, "CUDAExecutionProvider"]])
def test_other_providers_beside_it_are_refused(providers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    with pytest.raises(ProviderError, match="comes first"):
        register_plugin(NO_DEVICES, providers)


def test_processor_that_the_plugin_does_not_run_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_openvino", SimpleNamespace(get_library_path=str))
    monkeypatch.setattr(openvino, "processor", lambda: SimpleNamespace(model="Another Processor", features=()))
    registers = SimpleNamespace(**vars(NO_DEVICES), register_execution_provider_library=lambda *names: None)
    with pytest.raises(ProviderError, match="this one is Another Processor; use cpu"):
        register_plugin(registers, [OPENVINO])


def test_bfloat16_is_known_from_the_options() -> None:
    assert wants_bfloat16(providers_for(device="openvino:bf16"))
    assert not wants_bfloat16(providers_for(device="openvino"))
    assert not wants_bfloat16([(CPU, {HINT: "bf16"})])


@plugin
def test_vectors_are_those_of_the_cpu_in_any_batch() -> None:
    texts = ["", "a", "A man is playing a guitar.", "word " * 60, "Someone plays."]
    with Encoder(DATA / "bundle-v1") as cpu, Encoder(DATA / "bundle-v1", device="openvino") as encoder:
        vectors = encoder.encode(texts)
        np.testing.assert_allclose(vectors, cpu.encode(texts), atol=1e-4)
        np.testing.assert_allclose(np.stack([encoder.encode(text) for text in texts]), vectors, atol=1e-4)
        assert encoder.providers[0] == OPENVINO
        assert encoder.placement.share(OPENVINO) == 1
        assert encoder.verify().min_cosine > 0.999999


@plugin
def test_one_encoder_serves_several_threads() -> None:
    texts = [f"Text {number}. " * (1 + number % 9) for number in range(24)]
    with Encoder(DATA / "bundle-v1", device="openvino") as encoder, ThreadPoolExecutor(4) as executor:
        vectors = np.stack(list(executor.map(encoder.encode, texts)))
        np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-4)


@plugin
def test_vectors_bundles_run_too() -> None:
    with VectorWhitener(DATA / "bundle-v1-vectors", device="openvino") as whitener:
        assert whitener.verify().min_cosine > 0.999999


@plugin
def test_unknown_properties_are_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProviderError, match="Unsupported property FOO"):
        Encoder(DATA / "bundle-v1", [(OPENVINO, {"FOO": "1"})])
    assert capfd.readouterr().err == ""


@plugin
def test_the_library_is_registered_once_by_any_number_of_threads() -> None:
    barrier = threading.Barrier(4)

    def encode(_: int) -> np.ndarray:
        barrier.wait()
        with Encoder(DATA / "bundle-v1", device="openvino", threads=1) as encoder:
            return encoder.encode("A text.")

    with ThreadPoolExecutor(4) as executor:
        first, *others = executor.map(encode, range(4))
    for vector in others:
        np.testing.assert_allclose(vector, first, atol=1e-5)


@plugin
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_embed() -> None:
    with Encoder(DATA / "bundle-v1", device="openvino", threads=2) as encoder:
        vector = encoder.encode("A text.")
        child = os.fork()
        if not child:
            os._exit(0 if np.allclose(encoder.encode("A text."), vector, atol=1e-5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
