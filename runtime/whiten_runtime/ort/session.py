"""Create onnxruntime sessions: explicit threads, no silent fallback, matrix products where they were asked for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.errors import BundleError, ProviderError, check_flags, one_line
from whiten_runtime.ort.nvidia import advice, missing_for
from whiten_runtime.ort.processor import default_threads, saturates_int8, thread_count
from whiten_runtime.ort.providers import (
    BFLOAT16,
    CPU_PROVIDER,
    CUDA_PROVIDER,
    Provider,
    check_available,
    checked_providers,
    import_onnxruntime,
    installed_packages,
    multiplies_bfloat16,
    on_device,
    preload_libraries,
    provider_name,
)

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
