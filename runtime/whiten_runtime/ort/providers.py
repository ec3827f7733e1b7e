"""Choose execution providers: parse them, check that onnxruntime has them, and set their default options."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from whiten_runtime.errors import MissingPackageError, ProviderError, UsageError, WhitenError, described

Provider = str | tuple[str, Mapping[str, Any]]

DEVICE_VARIABLE = "WHITEN_DEVICE"

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"

BFLOAT16 = "mlas.enable_gemm_fastmath_arm64_bfloat16"
"""The one option of the CPU's provider, a setting of onnxruntime's sessions: ARM64 processors that can multiply in
bfloat16 do so where the graph has float32. Others compute as without it."""

NVIDIA = {CUDA_PROVIDER: "cuda", TENSORRT_PROVIDER: "tensorrt"}
"""NVIDIA's providers, and the names of their libraries in onnxruntime."""

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")
"""Distributions that all install the module `onnxruntime` and overwrite each other's files."""

_DEVICES = "cpu, cuda, cuda:N, tensorrt or tensorrt:N"

_TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"

_FATAL = 4
_log = {"severity": -1}
"""Minimum severity of messages in onnxruntime's own log, outside sessions; -1 for its default."""

_DEFAULTS: dict[str, dict[str, Any]] = {CUDA_PROVIDER: {"use_tf32": 0, "enable_skip_layer_norm_strict_mode": 1}}
"""Options that a provider gets unless they are given: float32 is float32, not TensorFloat-32, and the mean and variance
of a float16 normalisation are computed in float32.
"""


def checked_providers(providers: Sequence[Provider]) -> tuple[Provider, ...]:
    if isinstance(providers, str):
        raise UsageError(f"providers is the string '{providers}'; wanted a list, such as ['{providers}']")
    if not isinstance(providers, Sequence):
        raise UsageError(f"providers is {described(providers)}; wanted a list, such as ['{CPU_PROVIDER}']")
    if not providers:
        raise UsageError("providers is empty; name at least one, such as 'CPUExecutionProvider'")
    return tuple(_with_defaults(provider) for provider in providers)


def providers_for(providers: Sequence[Provider] | None = None, device: str | None = None) -> tuple[Provider, ...]:
    """Return the providers for a list of providers or a device; if neither is given, WHITEN_DEVICE's, else the CPU."""
    if providers is not None:
        if device is not None:
            raise UsageError(f"both providers and device {device!r} are given; leave one of them out")
        return checked_providers(providers)
    if device is not None:
        return checked_providers([on_device(device)])
    return environment_providers() or (CPU_PROVIDER,)


def environment_providers() -> tuple[Provider, ...]:
    """Return the provider that the environment's WHITEN_DEVICE names, as `--device` would; none if it is not set."""
    named = os.environ.get(DEVICE_VARIABLE, "").strip()
    try:
        return checked_providers([parse_provider(named)]) if named else ()
    except UsageError as error:
        raise UsageError(f"{DEVICE_VARIABLE}: {error}") from None


def on_device(device: str) -> Provider:
    """Return the provider of "cpu", "cuda" or "tensorrt", the last two also with ":N"."""
    if not isinstance(device, str):
        raise UsageError(f"device is {described(device)}; wanted {_DEVICES}")
    if device == "cpu":
        return CPU_PROVIDER
    match = re.fullmatch(r"(cuda|tensorrt)(?::([0-9]{1,4}))?", device)
    if match is None:
        raise UsageError(f"device is '{device}'; wanted {_DEVICES}")
    return CUDA_PROVIDER if match[1] == "cuda" else TENSORRT_PROVIDER, {"device_id": int(match[2] or 0)}


def device_of(provider: Provider) -> str:
    """Return the device of a provider as `on_device` takes it, such as "cpu" or "cuda:0"; else the provider's name."""
    name, options = provider_name(provider), provider_options(provider)
    if name in NVIDIA:
        return f"{NVIDIA[name]}:{options.get('device_id', 0)}"
    return "cpu" if name == CPU_PROVIDER else name


def parse_provider(text: str) -> Provider:
    """Parse a device of the command line, as in `on_device`, or NAME:KEY=VALUE,... of a provider."""
    if re.match(r"(?i)(cpu|cuda|tensorrt)(:|$)", text):
        return on_device(text)
    name, colon, rest = text.partition(":")
    pairs = [option.partition("=") for option in rest.split(",")] if colon else []
    if not name or not all(key and equals for key, equals, _ in pairs):
        raise UsageError(f"device '{text}' cannot be read; wanted {_DEVICES}, or PROVIDER:KEY=VALUE,KEY=VALUE")
    return (name, {key: value for key, _, value in pairs}) if pairs else name


def provider_name(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]


def provider_options(provider: Provider) -> dict[str, Any]:
    """Return the options of a provider; none if it is only a name."""
    return {} if isinstance(provider, str) else dict(provider[1])


_PLACES = re.compile("device_id|path|dir|stream|alloc")
"""Options that say where to compute or to store: a proof does not depend on them."""


def describe_providers(providers: Sequence[Provider]) -> str:
    """Return providers as `--device` takes them, with their options, but for our defaults and `_PLACES`."""
    return ", ".join(map(_describe, providers))


def _describe(provider: Provider) -> str:
    name = provider_name(provider)
    usual = {key: str(value) for key, value in _DEFAULTS.get(name, {}).items()}
    options = {key: str(value) for key, value in provider_options(provider).items() if not _PLACES.search(key)}
    pairs = [f"{key}={value}" for key, value in options.items() if usual.get(key) != value]
    return f"{name}:{','.join(pairs)}" if pairs else name


def multiplies_bfloat16(providers: Sequence[Provider]) -> bool:
    """Return whether `BFLOAT16` is asked for."""
    return any(str(provider_options(provider).get(BFLOAT16)) == "1" for provider in providers)


def check_precision(bundle: Path, precision: str, providers: Sequence[Provider]) -> None:
    """Check that nothing less precise than float32 is asked for with a bundle of float32."""
    if precision == "fp32" and multiplies_bfloat16(providers):
        raise UsageError(
            f"{bundle}: is of float32, and {BFLOAT16} computes in bfloat16; leave it out, or export the model with "
            "--precision fp16"
        )


def check_opset(bundle: Path, opset: int) -> None:
    """Check that the installed onnxruntime computes the attention of opset 24, of which `--target cuda` makes graphs.

    The versions before 1.25 refuse such a graph, or their kernel for the CPU computes other vectors.
    """
    if opset < 24:
        return
    version = import_onnxruntime().__version__
    if tuple(map(int, version.split(".")[:2])) < (1, 25):
        raise ProviderError(
            f"{bundle}: has a graph of opset {opset}, which onnxruntime {version} refuses or computes wrongly; install "
            "onnxruntime 1.25 or newer, or export the model with --target cpu"
        )


@contextmanager
def telemetry_off() -> Iterator[None]:
    """Set the variable that keeps telemetry off until the block ends, unless it is set or onnxruntime is imported.

    C reads the environment without a lock: a program that imports onnxruntime in a thread sets the variable before it
    starts threads, which read it.
    """
    if "onnxruntime" in sys.modules or _TELEMETRY_OFF in os.environ:
        yield
        return
    os.environ[_TELEMETRY_OFF] = "1"
    try:
        yield
    finally:
        os.environ.pop(_TELEMETRY_OFF, None)  # another thread may have removed it first


def import_onnxruntime() -> Any:
    """Import onnxruntime with its telemetry off.

    Since 1.29 its Linux wheels report each session to Microsoft unless ORT_DISABLE_TELEMETRY is set before the import,
    from a thread that also keeps forked children from exiting.
    """
    try:
        with telemetry_off():
            import onnxruntime
    except ImportError as error:
        raise MissingPackageError(
            f"onnxruntime cannot be imported ({error}); install it with pip install "
            "onnxruntime, or onnxruntime-gpu for NVIDIA"
        ) from None
    if not hasattr(onnxruntime, "InferenceSession"):
        raise WhitenError(f"onnxruntime is installed incompletely; {reinstall()}")
    onnxruntime.disable_telemetry_events()  # for a program that imported onnxruntime before whiten did
    if _log["severity"] >= 0:
        onnxruntime.set_default_logger_severity(_log["severity"])
    return onnxruntime


def silence_log() -> None:
    """Keep onnxruntime's log off stderr, for command lines, which report errors in one line."""
    _log["severity"] = _FATAL


def installed_packages() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # imports email too; an encoder needs neither

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def conflict(installed: Mapping[str, str]) -> str | None:
    """Return a message if several of `PACKAGES` are installed, with the next step; None otherwise."""
    if len(installed) < 2:
        return None
    names = " and ".join(f"{name} {number}" for name, number in installed.items())
    return f"{names} are both installed and overwrite each other's files; {reinstall(installed)}"


def reinstall(installed: Sequence[str] | Mapping[str, str] = PACKAGES[:2]) -> str:
    return f"pip uninstall -y {' '.join(installed)}, then pip install one of them: onnxruntime-gpu for NVIDIA"


def check_available(
    providers: Sequence[Provider], available: Sequence[str], installed: Callable[[], Mapping[str, str]]
) -> None:
    for name in map(provider_name, providers):
        if name in available:
            continue
        if wrong := conflict(installed()):
            hint = f": {wrong}"
        elif name in NVIDIA:
            hint = "; pip uninstall -y onnxruntime, then pip install --force-reinstall --no-deps onnxruntime-gpu"
        else:
            hint = ""
        raise ProviderError(f"provider '{name}' is not available here, only {', '.join(available)}{hint}")


def preload_libraries(onnxruntime: Any, providers: Sequence[Provider]) -> None:
    """Load CUDA and cuDNN from pip's nvidia packages, where they are installed; the system's are found without this."""
    if NVIDIA.keys() & set(map(provider_name, providers)) and hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(io.StringIO()), suppress(Exception):
            onnxruntime.preload_dlls()  # prints the libraries that it does not find; the session's error is clearer


def _with_defaults(provider: Provider) -> Provider:
    pair = isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[1], Mapping)
    name = provider[0] if pair else provider
    if not isinstance(name, str):
        raise UsageError(f"providers holds {described(provider)}; wanted names, or (name, options) pairs")
    options = {**_DEFAULTS.get(name, {}), **provider_options(provider)}
    if name == CPU_PROVIDER and (options.keys() - {BFLOAT16} or str(options.get(BFLOAT16, 0)) not in ("0", "1")):
        given = ", ".join(f"{key}={value}" for key, value in options.items())
        raise UsageError(f"{name} has one option, {BFLOAT16}=1; got {given}")
    return (name, options) if options else name
