"""Execution providers: which were asked for, whether onnxruntime can have them, and with which options."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from whiten_runtime.errors import MissingPackageError, ProviderError, UsageError, WhitenError
from whiten_runtime.process import environment, quiet_stdout

Provider = str | tuple[str, Mapping[str, Any]]

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"

NVIDIA = {CUDA_PROVIDER: "cuda", TENSORRT_PROVIDER: "tensorrt"}
"""Providers of NVIDIA, and what onnxruntime calls their libraries."""

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")
"""Distributions that all install the module `onnxruntime`, each over the files of the other."""

_TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"

_FATAL = 4
_log = {"severity": -1}
"""Least severity of what onnxruntime's own log says, beyond what a session's options say; -1 for its default."""

_DEFAULTS: dict[str, dict[str, Any]] = {CUDA_PROVIDER: {"use_tf32": 0, "enable_skip_layer_norm_strict_mode": 1}}
"""Options that a provider gets unless they are given: float32 is float32, not TensorFloat-32, and the mean and variance
of a float16 normalisation are computed in float32."""


def checked_providers(providers: Sequence[Provider]) -> tuple[Provider, ...]:
    """Providers with our defaults among their options.

    Raises:
        UsageError: there is none, or one is neither a name nor a (name, options) pair.
    """
    if isinstance(providers, str):
        raise UsageError(f"providers is the string '{providers}'; wanted a list, such as ['{providers}']")
    if not providers:
        raise UsageError("providers is empty; name at least one, such as 'CPUExecutionProvider'")
    return tuple(_with_defaults(provider) for provider in providers)


def providers_for(providers: Sequence[Provider] | None = None, device: str | None = None) -> tuple[Provider, ...]:
    """What to run on, from providers or a device; the CPU if neither is given.

    Args:
        providers: names or (name, options) pairs, in order of preference.
        device: "cpu", "cuda" or "cuda:N".

    Raises:
        UsageError: both are given, or one cannot be used as given.
    """
    if providers is not None:
        if device is not None:
            raise UsageError(f"both providers and device '{device}' are given; leave one of them out")
        return checked_providers(providers)
    return checked_providers([on_device(device or "cpu")])


def on_device(device: str) -> Provider:
    """The provider of "cpu", "cuda" or "cuda:N".

    Raises:
        UsageError: it is none of them.
    """
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if found is None:
        raise UsageError(f"device is '{device}'; wanted cpu, cuda or cuda:N")
    return CPU_PROVIDER if device == "cpu" else (CUDA_PROVIDER, {"device_id": int(found[1] or 0)})


def parse_provider(text: str) -> Provider:
    """A provider from the command line: a name, NAME:KEY=VALUE,KEY=VALUE, or a device as `on_device` has it.

    Raises:
        UsageError: it is none of them.
    """
    if re.match(r"(?i)(cpu|cuda)(:|$)", text):
        return on_device(text)
    name, colon, rest = text.partition(":")
    pairs = [option.partition("=") for option in rest.split(",")] if colon else []
    if not name or not all(key and equals for key, equals, _ in pairs):
        raise UsageError(
            f"provider '{text}' cannot be read; wanted NAME, NAME:KEY=VALUE,KEY=VALUE, or cpu, cuda, cuda:N"
        )
    return (name, {key: value for key, _, value in pairs}) if pairs else name


def provider_name(provider: Provider) -> str:
    """Name of a provider given alone or with its options."""
    return provider if isinstance(provider, str) else provider[0]


def provider_options(provider: Provider) -> dict[str, Any]:
    """Options of a provider; none for a name alone."""
    return {} if isinstance(provider, str) else dict(provider[1])


def import_onnxruntime() -> Any:
    """Import onnxruntime with its telemetry off.

    Since 1.29 its Linux wheels report each session to Microsoft unless ORT_DISABLE_TELEMETRY is set before the import,
    from a thread that also keeps forked children from exiting.

    Raises:
        MissingPackageError: neither onnxruntime nor onnxruntime-gpu is installed.
    """
    try:
        with environment(_TELEMETRY_OFF, "1"):
            import onnxruntime
    except ImportError as error:
        raise MissingPackageError(
            f"onnxruntime cannot be imported ({error}); install it with pip install 'whiten[cpu]', "
            "or 'whiten[gpu]' for NVIDIA"
        ) from None
    if not hasattr(onnxruntime, "InferenceSession"):
        raise WhitenError(f"onnxruntime is installed incompletely; {reinstall()}")
    onnxruntime.disable_telemetry_events()  # for a program that imported onnxruntime before us
    if _log["severity"] >= 0:
        onnxruntime.set_default_logger_severity(_log["severity"])
    return onnxruntime


def silence_log() -> None:
    """Keep onnxruntime's log off stderr: for command lines, which say what went wrong in one line."""
    _log["severity"] = _FATAL


def installed_packages() -> dict[str, str]:
    """Versions of those of `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def conflict(installed: Mapping[str, str]) -> str | None:
    """What is wrong with several of `PACKAGES` being installed, and what to do; None if it is one.

    Args:
        installed: as by `installed_packages`.
    """
    if len(installed) < 2:
        return None
    names = " and ".join(f"{name} {number}" for name, number in installed.items())
    return f"{names} are both installed and overwrite each other's files; {reinstall(installed)}"


def reinstall(installed: Sequence[str] | Mapping[str, str] = PACKAGES[:2]) -> str:
    """How to have one of several packages."""
    return f"pip uninstall -y {' '.join(installed)}, then pip install one of them: onnxruntime-gpu for NVIDIA"


def check_available(
    providers: Sequence[Provider], available: Sequence[str], installed: Callable[[], Mapping[str, str]]
) -> None:
    """Check that onnxruntime was built with each provider.

    Args:
        providers: those asked for.
        available: those that this build of onnxruntime has.
        installed: as `installed_packages`.

    Raises:
        ProviderError: it was not; the message says what to install.
    """
    for name in map(provider_name, providers):
        if name in available:
            continue
        if wrong := conflict(installed()):
            hint = f": {wrong}"
        elif name in NVIDIA:
            hint = (
                "; pip uninstall -y onnxruntime, then pip install onnxruntime-gpu (whiten[gpu] in place of whiten[cpu])"
            )
        else:
            hint = ""
        raise ProviderError(f"provider '{name}' is not available here, only {', '.join(available)}{hint}")


def preload_libraries(onnxruntime: Any, providers: Sequence[Provider]) -> None:
    """Load the CUDA and cuDNN of pip's nvidia packages, where they are; the system's are found without."""
    if NVIDIA.keys() & set(map(provider_name, providers)) and hasattr(onnxruntime, "preload_dlls"):
        with quiet_stdout(), suppress(Exception):
            onnxruntime.preload_dlls()  # prints what it does not find; the session's error says it better


def _with_defaults(provider: Provider) -> Provider:
    pair = isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[1], Mapping)
    name = provider[0] if pair else provider
    if not isinstance(name, str):
        raise UsageError(f"provider {provider!r} is neither a name nor a (name, options) pair")
    options = {**_DEFAULTS.get(name, {}), **provider_options(provider)}
    return (name, options) if options else name
