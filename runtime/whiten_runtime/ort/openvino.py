"""Run graphs with OpenVINO on Intel processors, through the plugin that onnxruntime loads once per process.

`InferenceSession(providers=...)` ignores plugins: their library is registered, and a device of theirs is added to the
options of a session. The plugin drops options that it does not know, unless they are properties in `load_config`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from whiten_runtime.errors import MissingPackageError, ProviderError, UsageError, from_clone, one_line
from whiten_runtime.ort.process import ForkSafeLock
from whiten_runtime.ort.processor import BF16, processor, thread_count
from whiten_runtime.ort.providers import (
    BFLOAT16,
    CPU_PROVIDER,
    OPENVINO_PROVIDER,
    PRECISION_HINT,
    Provider,
    provider_name,
    provider_options,
)

PLUGIN = "onnxruntime-ep-openvino"
"""Distribution of the plugin; it stands beside onnxruntime and brings OpenVINO itself."""

_MODULE = "onnxruntime_ep_openvino"
_REGISTERED_AS = "whiten-openvino"

_DEFAULTS = {PRECISION_HINT: "f32", "ENABLE_CPU_PINNING": "NO"}
"""Properties that the plugin gets unless they are given.

On processors with bfloat16 OpenVINO computes in it by default: float32 is float32 here. And it ties its threads to
processors, from the first one on, which lets several processes wait for the same ones while others idle.
"""

_FATAL = 4
"""Severity from which the plugin's messages are logged: an error comes as an exception too, with the same text."""

_THREADS = "INFERENCE_NUM_THREADS"

_registration = ForkSafeLock()


def plugin_version() -> str | None:
    """Return the version of the plugin, or None where it is not installed."""
    try:
        return version(PLUGIN)
    except PackageNotFoundError:
        return None


def wants_openvino(providers: Sequence[Provider]) -> bool:
    """Return whether OpenVINO is among the providers."""
    return OPENVINO_PROVIDER in map(provider_name, providers)


def wants_bfloat16(providers: Sequence[Provider]) -> bool:
    """Return whether OpenVINO is asked to compute in bfloat16."""
    return any(
        provider_name(provider) == OPENVINO_PROVIDER and provider_options(provider).get(PRECISION_HINT) == BFLOAT16
        for provider in providers
    )


def register_plugin(onnxruntime: Any, providers: Sequence[Provider]) -> bool:
    """Register the plugin's library, once per process, if OpenVINO is among the providers.

    A forked child inherits the registration.
    """
    if not wants_openvino(providers):
        return False
    for provider in providers:
        if provider_name(provider) == OPENVINO_PROVIDER:
            check_options(provider_options(provider))
    if find_spec(_MODULE) is None:
        if OPENVINO_PROVIDER in onnxruntime.get_available_providers():
            return False
        raise MissingPackageError(
            f"{OPENVINO_PROVIDER} needs {PLUGIN}, which is not installed; install it {from_clone('openvino')} "
            "(Linux and Windows on x86-64)"
        )
    _check_combination(providers)
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise ProviderError(
            f"onnxruntime {onnxruntime.__version__} cannot load {PLUGIN}; pip install 'onnxruntime>=1.23'"
        )
    with _registration:
        if not _devices(onnxruntime):
            _register(onnxruntime)
        if not _devices(onnxruntime):
            raise ProviderError(f"{PLUGIN} runs on Intel's processors, and this one is {processor().model}; use cpu")
    return True


def _register(onnxruntime: Any) -> None:
    """Register the plugin's library, unless it is registered already and has no device here."""
    from onnxruntime_ep_openvino import get_library_path

    try:
        onnxruntime.register_execution_provider_library(_REGISTERED_AS, get_library_path())
    except Exception as error:  # onnxruntime's exceptions share no base class
        if "already registered" not in str(error):
            raise ProviderError(f"{PLUGIN} cannot be loaded: {one_line(error)}") from error


def add_plugin(onnxruntime: Any, settings: Any, providers: Sequence[Provider], threads: int) -> None:
    """Add OpenVINO's CPU to the options of a session."""
    device, options = _devices(onnxruntime)[0], provider_options(providers[0])
    if options.get(PRECISION_HINT) == BFLOAT16:
        check_bfloat16(processor().features, device.ep_metadata.get("OPTIMIZATION_CAPABILITIES", "").split())
    settings.log_severity_level = _FATAL
    settings.add_provider_for_devices([device], {"load_config": plugin_config(options, threads)})


def plugin_config(options: Mapping[str, Any], threads: int) -> str:
    """Return OpenVINO's properties as the JSON document that the plugin takes."""
    properties = {**_DEFAULTS, _THREADS: threads, **options}
    return json.dumps({"CPU": {name: str(value) for name, value in properties.items()}}, sort_keys=True)


def check_options(options: Mapping[str, Any]) -> None:
    """Check precision and threads in OpenVINO's options, before anything is loaded."""
    precision = options.get(PRECISION_HINT, "f32")
    if precision not in ("f32", BFLOAT16):
        raise UsageError(f"{PRECISION_HINT} is '{precision}'; wanted f32 or {BFLOAT16}")
    if precision == BFLOAT16:
        check_bfloat16(processor().features)
    if (threads := options.get(_THREADS)) is not None:
        thread_count(_THREADS, int(threads) if str(threads).isdecimal() else threads)


def check_bfloat16(features: Collection[str], capabilities: Collection[str] = (BF16,)) -> None:
    """Check that the processor multiplies bfloat16.

    Without it OpenVINO does not refuse, but emulates: 44 times slower than float32 on a Xeon with AVX-512 VNNI.
    """
    if (features and BF16 not in features) or BF16 not in capabilities:
        has = f", only {', '.join(features)}" if features else ""
        raise ProviderError(
            f"bfloat16 was asked for, but this processor has neither AMX-BF16 nor AVX-512 BF16{has}; "
            "use openvino without bf16, or an int8 bundle on cpu"
        )


def check_bundle_precision(precision: str, providers: Sequence[Provider]) -> None:
    """Check that OpenVINO is not given an int8 bundle.

    Its CPU has no fused kernel for products with one scale a token: all-MiniLM-L6-v2 in int8 takes 6.7 CPU ms a short
    text there and 66 a text of 128 tokens, in float32 5.4 and 46 (Xeon with AVX-512 VNNI).
    """
    if precision == "int8" and wants_openvino(providers):
        raise ProviderError(
            "this is an int8 bundle, which OpenVINO runs more slowly than a float32 one; open the float32 bundle of "
            "the model with it, or this one on cpu"
        )


def _check_combination(providers: Sequence[Provider]) -> None:
    names = [provider_name(provider) for provider in providers]
    if names[0] != OPENVINO_PROVIDER or not {*names} <= {OPENVINO_PROVIDER, CPU_PROVIDER}:
        raise ProviderError(
            f"providers are {', '.join(names)}; {OPENVINO_PROVIDER} comes first, and only {CPU_PROVIDER} behind it"
        )


def _devices(onnxruntime: Any) -> list[Any]:
    """Return the processors that the plugin offers; none before it is registered."""
    return [
        device
        for device in onnxruntime.get_ep_devices()
        if device.ep_name == OPENVINO_PROVIDER and device.ep_metadata.get("ov_device") == "CPU"
    ]
