"""Diagnose this machine: processor, onnxruntime, providers that really load, and missing libraries."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from whiten_runtime.errors import WhitenError, one_line
from whiten_runtime.ort.processor import Processor, processor
from whiten_runtime.ort.session import (
    CPU_PROVIDER,
    Provider,
    SessionOptions,
    advice,
    conflict,
    create_session,
    import_onnxruntime,
    installed_packages,
    missing_for,
    provider_name,
)


@dataclass(frozen=True)
class ProviderCheck:
    name: str  # name of the provider
    works: bool  # whether it multiplied two matrices correctly
    problem: str | None = None  # reason for the failure; None if it works
    missing: tuple[str, ...] = ()  # library that it is linked to and that is not found


@dataclass(frozen=True)
class Diagnosis:
    system: str  # operating system and architecture
    python: str  # version of Python
    whiten: str  # version of whiten
    processor: Processor  # the machine's processor, and the part of it that this process may use
    packages: dict[str, str]  # installed distributions of onnxruntime, with their versions
    onnxruntime: str | None  # version and build of the module that is imported; None if it cannot be imported
    providers: tuple[ProviderCheck, ...]  # tests of the providers that this build has, and of those asked for
    problems: tuple[str, ...]  # one line for each required component that does not work


def diagnose(wanted: Sequence[Provider] = ()) -> Diagnosis:
    packages, unit = installed_packages(), processor()
    problems: list[str] = []
    build, checks = None, []
    try:
        onnxruntime = import_onnxruntime()
    except WhitenError as error:
        problems.append(str(error))
    else:
        build = f"{onnxruntime.__version__} ({' '.join(onnxruntime.get_build_info().split())})"
        asked = {provider_name(provider): provider for provider in wanted}
        names = [*dict.fromkeys([*asked, *_with_cpu_last(onnxruntime.get_available_providers())])]
        checks = [check_provider(onnxruntime, asked.get(name, name)) for name in names]
        must = {*asked, CPU_PROVIDER}
        problems += [f"{check.name}: {check.problem}" for check in checks if check.name in must and not check.works]
    if (wrong := conflict(packages)) and (problems or not wanted):
        problems.insert(0, wrong)
    return Diagnosis(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        whiten=version("whiten"),
        processor=unit,
        packages=packages,
        onnxruntime=build,
        providers=tuple(checks),
        problems=tuple(problems),
    )


_PRODUCT = (
    b'\x08\n:F\n\x11\n\x01x\n\x01x\x12\x01y"\x06MatMul\x12\x07productZ\x13\n\x01x\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08\x02\n\x02\x08\x02'
    b"b\x13\n\x01y\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08\x02\n\x02\x08\x02B\x02\x10\x14"
)
"""Content of an ONNX file with one node: y = x x, float32 [2, 2]."""


def check_provider(onnxruntime: Any, provider: Provider, opened: Callable[..., Any] = create_session) -> ProviderCheck:
    """Multiply two matrices on only one provider."""
    name = provider_name(provider)
    a = np.array([[1, 2], [3, 4]], np.float32)
    try:
        session = opened(_PRODUCT, SessionOptions((provider,), threads=1))
        (product,) = session.run(["y"], {"x": a})
    except Exception as error:  # onnxruntime's exceptions share no base class
        missing = missing_for(onnxruntime, name)
        if missing is None:
            return ProviderCheck(name, False, one_line(error))
        return ProviderCheck(name, False, f"cannot load {missing}: {advice(missing)}", (missing,))
    if not np.array_equal(product, a @ a):
        return ProviderCheck(name, False, f"multiplies wrongly: {product.tolist()} instead of {(a @ a).tolist()}")
    return ProviderCheck(name, True)


def _with_cpu_last(names: Sequence[str]) -> list[str]:
    """Sort the CPU last, and leave out Azure's provider, which calls a remote service instead of running here."""
    return sorted((name for name in names if not name.startswith("Azure")), key=lambda name: name == CPU_PROVIDER)
