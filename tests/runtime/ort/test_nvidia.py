"""Test NVIDIA's driver and libraries with fakes: machines that run these tests have no GPU."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whiten_runtime.errors import from_clone
from whiten_runtime.ort.nvidia import (
    Driver,
    Gpu,
    advice,
    driver,
    library_versions,
    missing_libraries,
    provider_library,
)


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

    assert missing_libraries(Path("provider.so"), load) == ["libcublasLt.so.13"]
    assert missing_libraries(Path("provider.so"), refuse) == []
    assert missing_libraries(Path("provider.so"), lambda name: None) == []


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


def test_advice_for_missing_libraries() -> None:
    assert advice(["libcuda.so.1"]) == "install NVIDIA's driver, or give this container a GPU"
    assert advice(["libcublas.so.13"]) == f"{from_clone('gpu,cuda')}, for CUDA and cuDNN"
    both = advice(["libcublas.so.13", "libcuda.so.1"])
    assert both.startswith(from_clone("gpu,cuda"))
    assert both.endswith("give this container a GPU")
    assert advice(["libnvinfer.so.10"]) == "pip install tensorrt"
