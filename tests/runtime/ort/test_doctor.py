"""Test whiten doctor on this machine and on simulated ones, and NVIDIA's driver and libraries with fakes."""

import ctypes
import json
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.cli import invoke
from whiten_runtime.commands.main import whiten
from whiten_runtime.errors import from_clone
from whiten_runtime.ort import doctor, providers
from whiten_runtime.ort.doctor import check_provider, diagnose
from whiten_runtime.ort.nvidia import (
    Driver,
    Gpu,
    advice,
    driver,
    library_versions,
    missing_library,
    provider_library,
)
from whiten_runtime.ort.processor import processor

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


run = partial(invoke, whiten, "doctor")


def test_cpu_works_on_this_machine() -> None:
    result = run()
    assert result.exit_code == 0, result.stderr
    assert f"{CPU}: works" in result.stdout
    assert f", whiten {version('whiten')}\n" in result.stdout
    document = json.loads(run("--json").stdout)
    assert document["problems"] == []
    assert document["processor"]["threads"] >= 1
    assert any(check == {"name": CPU, "works": True, "problem": None, "missing": []} for check in document["providers"])


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
@pytest.mark.parametrize("provider", ["cuda", CUDA])
@pytest.mark.parametrize("environment", [False, True])
def test_requested_provider_that_does_not_work_is_an_error(
    provider: str, environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment:
        monkeypatch.setenv("WHITEN_DEVICE", provider)
    result = run() if environment else run("--device", provider)
    assert result.exit_code == 1
    assert f"error: {CUDA}: " in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert f"{CPU}: works" in result.stdout


def test_malformed_provider_is_refused() -> None:
    result = run("--device", "cuda:x")
    assert result.exit_code == 2
    assert "wanted cpu, cuda, cuda:N" in result.stderr


def test_two_packages_of_onnxruntime_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(doctor, "installed_packages", lambda: both)
    result = run()
    assert result.exit_code == 1
    assert "are both installed and overwrite each other's files; pip uninstall -y" in result.stderr
    result = run("--device", "cpu")  # asked for what the imported one does
    assert (result.exit_code, result.stderr) == (0, "")


def test_missing_onnxruntime_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise providers.WhitenError("onnxruntime cannot be imported; install it")

    monkeypatch.setattr(doctor, "import_onnxruntime", fail)
    found = diagnose()
    assert found.onnxruntime is None
    assert found.problems == ("onnxruntime cannot be imported; install it",)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_for", lambda module, name: "libcublasLt.so.13")
    module = SimpleNamespace()

    def opened(graph: bytes, options: object) -> Any:
        raise RuntimeError("Failed to load a shared library")

    found = check_provider(module, CUDA, opened)
    assert found.missing == ("libcublasLt.so.13",)
    assert found.problem == f"cannot load libcublasLt.so.13: {from_clone('gpu,cuda')}, for CUDA and cuDNN"


def test_provider_that_computes_wrongly_does_not_work() -> None:
    class Session:
        def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [feed["x"]]

    found = check_provider(SimpleNamespace(__file__=__file__), CPU, lambda graph, options: Session())
    assert not found.works
    assert "multiplies wrongly" in str(found.problem)


def test_gpus_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Driver("13.1", None, (Gpu("NVIDIA L4", 24_000_000_000, "8.9"),))
    monkeypatch.setattr(doctor, "driver", lambda: found)
    monkeypatch.setattr(doctor, "library_versions", lambda: {"CUDA": "13.5"})
    monkeypatch.setattr(doctor, "check_provider", lambda ort, provider: doctor.ProviderCheck(str(provider), True))
    result = run("--device", CUDA)
    assert result.exit_code == 0
    assert "driver for CUDA 13.1" in result.stdout
    assert "libraries: CUDA 13.5, cuDNN not found" in result.stdout
    assert "NVIDIA L4, 24.00 GB, compute capability 8.9" in result.stdout


def test_processor_features_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc/cpuinfo"
    info.write_text(
        "model name\t: Xeon\nflags\t\t: avx2 avx512f avx512_vnni avx512_bf16 amx_tile\nmodel name : other\n"
    )
    found = processor(tmp_path, "x86_64")
    assert (found.model, found.features) == ("Xeon", ("AVX2", "AVX-512", "VNNI", "BF16", "AMX"))
    assert found.exact_int8
    info.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16 sve\n")
    found = processor(tmp_path, "aarch64")
    assert found.features == ("BF16", "NEON", "DOTPROD", "I8MM", "SVE")
    info.write_text("model name : old\nflags : avx2\n")
    assert not processor(tmp_path, "x86_64").exact_int8


class FakeDriver:
    """Imitates libcuda with given GPUs: name, bytes, capability."""

    def __init__(self, *gpus: tuple[str, int, tuple[int, int]], status: int = 0) -> None:
        self.gpus, self.status = gpus, status

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuDriverGetVersion(self, version: Any) -> None:  # noqa: N802
        version._obj.value = 13010

    def cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802
        count._obj.value = len(self.gpus)

    def cuDeviceGet(self, device: Any, index: int) -> None:  # noqa: N802
        device._obj.value = index

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> None:  # noqa: N802
        name.value = self.gpus[device.value][0].encode()

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> None:  # noqa: N802
        memory._obj.value = self.gpus[device.value][1]

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> None:  # noqa: N802
        value._obj.value = self.gpus[device.value][2][attribute - 75]


def test_driver_and_gpus_are_read() -> None:
    fake: Any = FakeDriver(("NVIDIA L4", 23 << 30, (8, 9)), ("NVIDIA H100", 80 << 30, (9, 0)))
    gpus = (Gpu("NVIDIA L4", 23 << 30, "8.9"), Gpu("NVIDIA H100", 80 << 30, "9.0"))
    assert driver(lambda name: fake) == Driver("13.1", None, gpus)


def test_driver_problems_are_reported() -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    assert "no NVIDIA driver: libcuda.so.1: cannot open" in str(driver(absent).problem)
    broken: Any = FakeDriver(status=999)
    assert "cuInit gave 999" in str(driver(lambda name: broken).problem)
    empty: Any = FakeDriver()
    assert driver(lambda name: empty) == Driver("13.1", "the NVIDIA driver shows this process no GPU")


def test_a_missing_library_is_found() -> None:
    def load(name: str) -> None:
        raise OSError("libcublasLt.so.13: cannot open shared object file: No such file or directory")

    def refuse(name: str) -> None:
        raise OSError("/x/libonnxruntime_providers_cuda.so: undefined symbol: Provider_GetHost")

    assert missing_library(Path("provider.so"), load) == "libcublasLt.so.13"
    assert missing_library(Path("provider.so"), refuse) is None
    assert missing_library(Path("provider.so"), lambda name: None) is None


def test_provider_library_is_found(tmp_path: Path) -> None:
    assert provider_library(tmp_path, "cuda") is None
    path = tmp_path / "capi" / "libonnxruntime_providers_cuda.so"
    path.parent.mkdir()
    path.write_bytes(b"")
    assert provider_library(tmp_path, "cuda") == path


def test_library_versions_are_read() -> None:
    class Runtime:
        @staticmethod
        def cudaRuntimeGetVersion(number: Any) -> None:  # noqa: N802
            number._obj.value = 12090

    class Version:
        def __call__(self) -> int:
            return 92800

    def load(name: str) -> Any:
        found = {"libcudart.so.12": Runtime, "libcudnn.so.9": SimpleNamespace(cudnnGetVersion=Version())}
        if name not in found:
            raise OSError(name)
        return found[name]

    def absent(name: str) -> Any:
        raise OSError(name)

    assert library_versions(load) == {"CUDA": "12.9", "cuDNN": "9.28.0"}
    assert library_versions(absent) == {}


def test_advice_for_a_missing_library() -> None:
    assert advice("libcuda.so.1") == "install NVIDIA's driver, or give this container a GPU"
    assert advice("libcublas.so.13") == f"{from_clone('gpu,cuda')}, for CUDA and cuDNN"
    assert advice("libnvinfer.so.10") == "pip install tensorrt"
