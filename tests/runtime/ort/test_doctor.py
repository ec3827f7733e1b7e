"""Test whiten doctor on this machine and on simulated ones, and NVIDIA's libraries with fakes."""

import json
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.cli import invoke
from whiten_runtime.commands.console import whiten
from whiten_runtime.errors import from_clone
from whiten_runtime.ort import doctor
from whiten_runtime.ort import session as providers
from whiten_runtime.ort.doctor import check_provider, diagnose
from whiten_runtime.ort.processor import processor
from whiten_runtime.ort.session import missing_library, provider_library

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


def test_processor_features_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc/cpuinfo"
    info.write_text(
        "model name\t: Xeon\nflags\t\t: avx2 avx512f avx512_vnni avx512_bf16 amx_tile\nmodel name : other\n"
    )
    found = processor(tmp_path)
    assert (found.model, found.features) == ("Xeon", ("AVX2", "AVX-512", "VNNI", "BF16", "AMX"))
    info.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16 sve\n")
    found = processor(tmp_path)
    assert found.features == ("BF16", "NEON", "DOTPROD", "I8MM", "SVE")


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
