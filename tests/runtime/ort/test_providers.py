"""Test the choice of providers, with faked lists of available ones, and the placement of nodes on them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.bundles import copy_bundle
from support.cli import invoke
from support.corpus import sentences
from whiten import Encoder, ProviderError, UsageError
from whiten_runtime.commands.console import whiten
from whiten_runtime.ort.session import (
    BFLOAT16,
    Placement,
    SessionOptions,
    check_available,
    check_placement,
    conflict,
    describe_providers,
    environment_providers,
    on_device,
    parse_provider,
    placement_of,
    preload_libraries,
    providers_for,
)

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
GPU_BUILD = ["TensorrtExecutionProvider", CUDA, CPU]


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("cpu", CPU),
        ("cuda", (CUDA, {"device_id": 0})),
        ("cuda:3", (CUDA, {"device_id": 3})),
        ("tensorrt", ("TensorrtExecutionProvider", {"device_id": 0})),
        (CUDA, CUDA),
        (f"{CUDA}:gpu_mem_limit=1000,device_id=1", (CUDA, {"gpu_mem_limit": "1000", "device_id": "1"})),
        ("TensorrtExecutionProvider:trt_fp16_enable=1", ("TensorrtExecutionProvider", {"trt_fp16_enable": "1"})),
        ("OpenVINOExecutionProvider:device_type=GPU.0", ("OpenVINOExecutionProvider", {"device_type": "GPU.0"})),
    ],
)
def test_parse_provider(text: str, provider: object) -> None:
    assert parse_provider(text) == provider


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "cuda:x", "tensorrt:x", "cuda:-1", "CPU:0", "cpu:bf16", "OpenVINOExecutionProvider:", f"{CUDA}:"),
        *(f"{CUDA}:fast", f"{CUDA}:=1"),
    ],
)
def test_malformed_providers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="wanted"):
        parse_provider(text)


@pytest.mark.parametrize("options", [{"use_arena": "0"}, {BFLOAT16: "yes"}, {BFLOAT16: 1, "other": 2}], ids=str)
def test_unknown_options_of_the_cpu_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"{CPU} has one option, {BFLOAT16}=1; got"):
        providers_for([(CPU, options)])


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-vectors"])
def test_bundles_of_float32_are_not_computed_in_bfloat16(name: str, golden: Path) -> None:
    device = f"{CPU}:{BFLOAT16}=1"
    result = invoke(whiten, "verify", golden / name, "--device", device)
    assert result.exit_code == 2
    assert f"{name}: is of float32, and {BFLOAT16} computes in bfloat16" in result.stderr
    assert invoke(whiten, "verify", golden / name, "--device", device.replace("=1", "=0")).exit_code == 0


@pytest.mark.parametrize(
    ("version", "opset", "opens"),
    [("1.24.1", 24, False), ("1.9.0", 24, False), ("1.24.1", 23, True), ("1.25.0", 24, True), ("2.0.0", 24, True)],
)
def test_opset_24_needs_a_recent_onnxruntime(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, opset: int, opens: bool
) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, opset=opset)
    monkeypatch.setattr("onnxruntime.__version__", version)
    result = invoke(whiten, "verify", bundle)
    assert result.exit_code == (0 if opens else 1)
    assert (f"opset 24, which onnxruntime {version} refuses or computes wrongly" in result.stderr) != opens


@pytest.mark.parametrize("value", ["1", "0"])
def test_a_proof_names_options_of_its_provider(golden: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    device = f"{CPU}:{BFLOAT16}={value}"
    result = invoke(whiten, "verify", golden / "bundle-v1-int8", "--device", device, "--json")
    assert json.loads(result.stdout)["provider"] == device
    assert f" on {device}: " in result.stderr
    monkeypatch.setenv("WHITEN_DEVICE", device)
    assert f" on {device}: " in invoke(whiten, "verify", golden / "bundle-v1-int8").stderr


@pytest.mark.parametrize(
    ("providers", "text"),
    [
        ([CPU], CPU),
        ([(CPU, {BFLOAT16: 1})], f"{CPU}:{BFLOAT16}=1"),
        ([(CUDA, {"device_id": 1})], CUDA),
        ([(CUDA, {"use_tf32": "0"}), CPU], f"{CUDA}, {CPU}"),
        ([(CUDA, {"use_tf32": 1})], f"{CUDA}:use_tf32=1"),
        ([CUDA, (CPU, {BFLOAT16: 1})], f"{CUDA}, {CPU}:{BFLOAT16}=1"),
        ([("Some", {"device_type": "CPU", "precision": "FP16"})], "Some:device_type=CPU,precision=FP16"),
    ],
    ids=str,
)
def test_describe_providers(providers: list[Any], text: str) -> None:
    assert describe_providers(providers_for(providers)) == text


def test_cuda_is_exact_unless_asked_to_be_fast() -> None:
    exact = {"use_tf32": 0, "enable_skip_layer_norm_strict_mode": 1}
    assert providers_for(device="cuda:1") == ((CUDA, {**exact, "device_id": 1}),)
    assert providers_for([CUDA, CPU]) == ((CUDA, exact), CPU)
    fast = {"use_tf32": 1, "enable_skip_layer_norm_strict_mode": 0}
    assert providers_for([(CUDA, fast)]) == ((CUDA, fast),)
    assert SessionOptions.on_device("cuda").providers == providers_for(device="cuda")
    assert SessionOptions((CUDA,)).providers == ((CUDA, exact),)


def test_options_of_other_providers_are_unchanged() -> None:
    tensorrt = ("TensorrtExecutionProvider", {"trt_fp16_enable": 1, "trt_engine_cache_path": "engines"})
    openvino = ("OpenVINOExecutionProvider", {"device_type": "NPU"})
    assert providers_for([tensorrt, openvino, CPU]) == (tensorrt, openvino, CPU)


def test_device_and_providers_exclude_each_other() -> None:
    assert providers_for() == (CPU,)
    with pytest.raises(UsageError, match="both providers and device 'cuda'"):
        providers_for([CUDA], "cuda")
    with pytest.raises(UsageError, match="device is 'gpu'; wanted cpu, cuda, cuda:N, tensorrt"):
        on_device("gpu")
    for number in ("４", "1_0", "1" * 5000):
        with pytest.raises(UsageError, match="wanted cpu, cuda, cuda:N, tensorrt"):
            on_device(f"cuda:{number}")


def test_environment_names_the_device_where_none_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHITEN_DEVICE", "cuda:1")
    assert providers_for() == providers_for(device="cuda:1") == environment_providers()
    assert providers_for(device="cpu") == providers_for([CPU]) == (CPU,)
    monkeypatch.setenv("WHITEN_DEVICE", f"{CUDA}:gpu_mem_limit=1000")
    assert providers_for()[0][1]["gpu_mem_limit"] == "1000"
    monkeypatch.setenv("WHITEN_DEVICE", " ")
    assert (providers_for(), environment_providers()) == ((CPU,), ())
    monkeypatch.setenv("WHITEN_DEVICE", "gpu:")
    with pytest.raises(UsageError, match="^WHITEN_DEVICE: device 'gpu:' cannot be read; wanted cpu, cuda"):
        providers_for()


@pytest.mark.parametrize(("command", "option"), [("drift", "--input"), ("fit", "--corpus"), ("embed-many", "--input")])
def test_commands_without_the_option_follow_the_environment(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences(60)), "utf-8")
    monkeypatch.setenv("WHITEN_DEVICE", "NoSuchExecutionProvider")
    out = () if command == "drift" else ("--out", tmp_path / "out")
    result = invoke(whiten, command, tiny_bundle, option, tmp_path / "texts.txt", *out)
    assert result.exit_code == 1
    assert "'NoSuchExecutionProvider'" in result.stderr


def test_error_for_an_unavailable_provider_names_the_package() -> None:
    def check(provider: str, available: list[str], *packages: str) -> str:
        with pytest.raises(ProviderError) as caught:
            check_available([provider], available, lambda: dict.fromkeys(packages, "1.31.1"))
        return str(caught.value)

    check_available([CUDA, CPU], GPU_BUILD, lambda: {"onnxruntime-gpu": "1.31.1"})
    assert "pip install --force-reinstall --no-deps onnxruntime-gpu" in check(CUDA, [CPU], "onnxruntime")
    both = check(CUDA, [CPU], "onnxruntime", "onnxruntime-gpu")
    assert "onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 are both installed" in both
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in both
    assert check("CoreMLExecutionProvider", [CPU], "onnxruntime").endswith(f"only {CPU}")


def test_one_package_is_no_conflict() -> None:
    assert conflict({}) is None
    assert conflict({"onnxruntime-gpu": "1.31.1"}) is None


def test_libraries_are_preloaded_only_for_nvidia(capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    class Module:
        @staticmethod
        def preload_dlls() -> None:
            calls.append(1)
            print("Failed to load libcublas")
            raise RuntimeError

    module: Any = Module
    preload_libraries(module, [CPU])
    assert not calls
    preload_libraries(module, [(CUDA, {"device_id": 0}), CPU])
    assert calls == [1]
    assert capsys.readouterr().out == ""


TENSORRT = "TensorrtExecutionProvider"


@dataclass
class Node:
    op_type: str


@dataclass
class Subgraph:
    ep_name: str
    operators: tuple[str, ...]

    def get_nodes(self) -> list[Node]:
        return [Node(name) for name in self.operators]


@dataclass
class Session:
    subgraphs: list[Subgraph]

    def get_provider_graph_assignment_info(self) -> list[Subgraph]:
        return self.subgraphs


def test_shape_nodes_on_the_cpu_are_allowed() -> None:
    placement = placement_of(
        Session([Subgraph(CUDA, ("MatMul", "Add")), Subgraph(CUDA, ("MatMul",)), Subgraph(CPU, ("Shape",))])
    )
    assert placement == Placement({CUDA: {"Add": 1, "MatMul": 2}, CPU: {"Shape": 1}})
    assert placement.nodes() == 4
    assert placement.share(CUDA) == 0.75
    check_placement(placement, [CUDA])


PARTS = [Subgraph(TENSORRT, ("MatMul", "Add")), Subgraph(CUDA, ("MatMul", "Attention")), Subgraph(CPU, ("Shape",))]
INT8 = [Subgraph(TENSORRT, ("Add",)), Subgraph(CPU, ("MatMulInteger", "MatMulInteger"))]


@pytest.mark.parametrize(
    ("parts", "providers", "message"),
    [
        (INT8, [TENSORRT], "no kernel for 2 MatMulInteger of this graph, which would run on the CPU"),
        (INT8, [TENSORRT, CUDA], f"{TENSORRT} and {CUDA} have no kernel for .*ask for CPUExecutionProvider too"),
        (INT8, [TENSORRT, CUDA, CPU], None),
        (PARTS, [TENSORRT, CUDA], None),  # what one accelerator leaves to the next is fine
        (PARTS, [TENSORRT], f"{TENSORRT} has no kernel for 1 Attention, 1 MatMul"),
        (INT8, [CUDA], "is active but runs no node"),
        (PARTS[1:], [TENSORRT, CUDA], "Tensorrt.* runs no node of this graph; use CUDAExecutionProvider for it"),
    ],
)
def test_matrix_products_run_where_they_were_asked_for(
    parts: list[Subgraph], providers: list[str], message: str | None
) -> None:
    placement = placement_of(Session(parts))
    if message is None:
        check_placement(placement, providers)
        return
    with pytest.raises(ProviderError, match=message):
        check_placement(placement, providers)


def test_missing_placement_report_is_accepted() -> None:
    placement = placement_of(object())
    assert placement.share(CPU) == 0
    check_placement(placement, [CUDA])


def test_placement_of_an_encoder(tiny_bundle: Path) -> None:
    pytest.importorskip("onnxruntime", "1.24", reason="onnxruntime reports no placement before 1.24")
    with Encoder(tiny_bundle, device="cpu") as encoder:
        assert encoder.placement.share(CPU) == 1
        assert encoder.placement.operators[CPU]["MatMul"] > 4
        assert encoder.placement.products_elsewhere(CPU) == {}
