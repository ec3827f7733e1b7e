"""Create onnxruntime sessions: execution providers that really load, explicit threads, no silent fallback.

Which library of NVIDIA is missing is found without onnxruntime, which may be what cannot be loaded.
"""

import ctypes
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.errors import (
    BundleError,
    MissingPackageError,
    ProviderError,
    UsageError,
    WhitenError,
    check_flags,
    described,
    from_clone,
    one_line,
)
from whiten_runtime.ort.processor import default_threads, saturates_int8, thread_count

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


_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_LIBRARIES = ("libcublas", "libcuda", "libcudnn", "libcufft", "libcurand", "libnvinfer", "libnvonnxparser", "libnvrtc")

_TENSORRT = ("libnvinfer", "libnvonnxparser")


def advice(missing: str) -> str:
    if missing.startswith(_TENSORRT):
        return "pip install tensorrt"
    if missing == _DRIVER:
        return "install NVIDIA's driver, or give this container a GPU"
    return f"{from_clone('gpu,cuda')}, for CUDA and cuDNN"


def missing_for(onnxruntime: Any, provider: str) -> str | None:
    """Return a library that is missing for a provider; None for providers that are not NVIDIA's."""
    if provider not in NVIDIA:
        return None
    library = provider_library(Path(onnxruntime.__file__).parent, NVIDIA[provider])
    return missing_library(library) if library else None


def provider_library(folder: Path, name: str) -> Path | None:
    """Return the path of onnxruntime's library of a provider ("cuda", "tensorrt"), or None where there is none."""
    for file in (f"libonnxruntime_providers_{name}.so", f"onnxruntime_providers_{name}.dll"):
        if (path := folder / "capi" / file).exists():
            return path
    return None


def missing_library(library: Path, load: Callable[[str], object] = ctypes.CDLL) -> str | None:
    """Return the library that keeps a shared library from being loaded, as the system's loader names it; or None."""
    try:
        load(str(library))
    except OSError as error:
        named = str(error).partition(":")[0]
        return named if named.startswith(_LIBRARIES) else None
    return None


RECORD = ("session.record_ep_graph_assignment_info", "1")
"""Session option that `placement_of` needs; without it there is nothing to read."""

PRODUCTS = frozenset(
    {
        *("Attention", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "MatMulNBits", "MultiHeadAttention"),
        *("QAttention",),
    }
)
"""Operators that multiply matrices. If one is on the CPU, most of the work is there, and the GPU waits for copies."""


@dataclass(frozen=True)
class Placement:
    """Nodes of each provider, after onnxruntime's first round of optimisation; later fusions are not counted.

    Attributes:
        operators: number of nodes by provider and operator.
    """

    operators: Mapping[str, Mapping[str, int]]

    def nodes(self, provider: str | None = None) -> int:
        providers = self.operators.values() if provider is None else [self.operators.get(provider, {})]
        return sum(sum(counts.values()) for counts in providers)

    def share(self, provider: str) -> float:
        """Return the share of the nodes that are on a provider, 0 to 1."""
        return self.nodes(provider) / max(1, self.nodes())

    def products_elsewhere(self, *providers: str) -> dict[str, int]:
        """Return the number of matrix products that are on other providers than these, by operator."""
        products: Counter[str] = Counter()
        for name, counts in self.operators.items():
            if name not in providers:
                products.update({operator: count for operator, count in counts.items() if operator in PRODUCTS})
        return dict(products)


def placement_of(session: Any) -> Placement:
    """Return the placement of a session that was created with `RECORD`; it is empty for an onnxruntime before 1.24."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return Placement({})
    counts: dict[str, Counter[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        counts.setdefault(subgraph.ep_name, Counter()).update(node.op_type for node in subgraph.get_nodes())
    return Placement({name: dict(sorted(nodes.items())) for name, nodes in counts.items()})


def check_placement(placement: Placement, providers: Sequence[str]) -> None:
    """Check that the first provider runs nodes of the graph, and that the providers asked for run its matrix products.

    What one accelerator leaves to the next is fine. onnxruntime adds the CPU behind them all; matrix products may fall
    back on it only if it was asked for.
    """
    provider = providers[0]
    if not placement.operators:
        return
    if not placement.nodes(provider):
        other = next((name for name in providers[1:] if placement.nodes(name)), "CPUExecutionProvider")
        raise ProviderError(f"{provider} is active but runs no node of this graph; use {other} for it")
    if elsewhere := placement.products_elsewhere(*providers):
        what = ", ".join(f"{count} {operator}" for operator, count in elsewhere.items())
        lacking = f"{provider} has" if len(providers) == 1 else f"{' and '.join(providers)} have"
        raise ProviderError(
            f"{lacking} no kernel for {what} of this graph, which would run on the CPU; export it with "
            "--precision fp32 or fp16, or ask for CPUExecutionProvider too"
        )


_UNWANTED_FUSIONS = {
    CPU_PROVIDER: ["SkipLayerNormFusion", "BiasGeluFusion"],
    CUDA_PROVIDER: ["SkipLayerNormFusion", "EmbedLayerNormFusion"],
}
"""onnxruntime's fusions that a session disables, by its first provider.

On the CPU because the kernels are slower than the operators they replace: SkipLayerNormalization is scalar code and ten
times slower than Add and LayerNormalization. On CUDA because the choice was made at export (`--target cuda`):
SkipLayerNormalization only of two arrays of one shape, which is what its exact kernel takes, and never
EmbedLayerNormalization, which computes mean and variance in float16 and waits for the GPU in every run.
"""

_ONNX_ALONE = ("session.load_model_format", "ONNX")
"""Setting without which content that begins like onnxruntime's own format is read as that, unseen by `scan_graph`."""

_SPIN_DURING_RUNS = ("session.force_spinning_stop", "1")
_NEVER_SPIN = ("session.intra_op.allow_spinning", "0")


@dataclass(frozen=True)
class Tuning:
    """Sizes that were chosen by measurement, and that only tests and benchmarks change."""

    # bytes of a graph times tokens of a batch, below which several threads cost more than they save
    little_work: float = 300e6
    # threads up to which batches that run at once share a session with single batches: half the memory, and the same
    # CPU time with 2 threads. With 4 and 8 threads on 2 processors it took 10 to 60 % more
    most_sharing: int = 2
    # bytes of a graph up to which a second copy is held, for batches that run at once
    largest_held_twice: int = 1 << 30
    # maximum number of padded tokens of a batch on a GPU: enough to fill an H100. Smaller ones were faster on short
    # texts and larger ones on long texts (benchmarks/gpu)
    gpu_token_budget: int = 16384


@dataclass(frozen=True)
class SessionOptions:
    # execution providers in order of preference; all of them must be active
    providers: tuple[Provider, ...] = (CPU_PROVIDER,)
    threads: int | None = None  # threads of one call; None for WHITEN_THREADS, else all the CPUs this process may use
    spinning: bool = True  # let threads spin while one operator waits for the next. Threads never spin between calls
    tuning: Tuning = Tuning()  # sizes chosen by measurement
    # take the exact kernel for products of uint8 and int8 where the fast one may saturate, on x86 without VNNI; for
    # weights of which pairs may be too large
    exact_int8: bool = False
    # hold buffers that onnxruntime plans for values of several layers: with them, a text of 16 tokens is up to 5 %
    # faster, and one of 8,192 takes up to three times the memory
    shared_buffers: bool = True
    # bytes that texts of more than 512 tokens may take at a time on CPUs; None for half of `usable_memory`
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "providers", checked_providers(self.providers))
        check_flags(spinning=self.spinning)
        if self.threads is not None:
            thread_count("threads", self.threads)

    @classmethod
    def on_device(cls, device: str) -> "SessionOptions":
        return cls((on_device(device),))

    @property
    def on_cpu(self) -> bool:
        """Return whether the CPU is the only provider."""
        return [provider_name(provider) for provider in self.providers] == [CPU_PROVIDER]


def create_session(
    graph: Path | bytes, options: SessionOptions, threads: int | None = None, weights: Path | None = None
) -> Any:
    """Create an `onnxruntime.InferenceSession` of a graph, by path or content, on exactly the providers asked for.

    `weights` is the folder of the external data of a graph that comes as its content.
    """
    ort = import_onnxruntime()
    check_available(options.providers, ort.get_available_providers(), installed_packages)
    preload_libraries(ort, options.providers)
    first = provider_name(options.providers[0])
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads or options.threads or default_threads()
    settings.inter_op_num_threads = 1
    # Threads that spin between runs take the processor from the process's other sessions and threads.
    settings.add_session_config_entry(*_SPIN_DURING_RUNS if options.spinning else _NEVER_SPIN)
    settings.log_severity_level = 4  # errors are raised, or make a batch run in halves; nothing needs to be printed
    # Memory plans made for every new shape are never freed: memory grows with the variety of lengths.
    settings.enable_mem_pattern = False
    settings.enable_mem_reuse = options.shared_buffers
    if options.exact_int8 and saturates_int8():
        settings.add_session_config_entry("session.x64quantprecision", "1")  # exact, and slower
    if multiplies_bfloat16(options.providers):
        settings.add_session_config_entry(BFLOAT16, "1")
    for key, setting in (RECORD, _ONNX_ALONE):
        settings.add_session_config_entry(key, setting)
    if weights is not None:
        settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    try:
        session = ort.InferenceSession(
            graph if isinstance(graph, bytes) else str(graph),
            settings,
            providers=list(options.providers),
            enable_fallback=0,
            disabled_optimizers=_UNWANTED_FUSIONS.get(first),
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        reason = one_line(error)
        if first != CPU_PROVIDER:
            raise ProviderError(f"{first} could not start: {_why(ort, first, reason)}") from error
        what = "a graph" if isinstance(graph, bytes) else str(graph)
        raise BundleError(f"{what}: onnxruntime does not accept it: {reason}") from error
    session.disable_fallback()
    active = session.get_providers()
    for wanted in map(provider_name, options.providers):
        if wanted not in active:
            why = _why(ort, wanted, f"onnxruntime runs on {', '.join(active)} without it")
            raise ProviderError(f"asked for provider '{wanted}', but {why}, or ask for {CPU_PROVIDER}")
    if first != CPU_PROVIDER:
        check_placement(placement_of(session), [provider_name(provider) for provider in options.providers])
    return session


def _why(onnxruntime: Any, provider: str, reason: str) -> str:
    """Explain why a provider did not start: a missing library, or onnxruntime's message."""
    missing = missing_for(onnxruntime, provider)
    what = reason if missing is None else f"{missing} cannot be loaded ({advice(missing)})"
    return f"{what}; see whiten doctor --device {provider}"
