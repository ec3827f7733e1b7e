"""Trace a PyTorch network to a graph of its hidden states, and run it in float32 as the reference."""

import copy
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from whiten_export.graph.build import HiddenStates, drop_weights, strip
from whiten_export.graph.ends import OPSET, map_surplus
from whiten_export.graph.poolings import pool
from whiten_export.proof.gate import Case, PublishedVectors
from whiten_export.proof.reference import Dense, Float64Array, Reference
from whiten_export.sources.checkpoint import Checkpoint, recommended_layers, source_record
from whiten_export.sources.checks import way_to_text
from whiten_export.sources.config import count_weights, empty_positions, has_positions, network_sha256
from whiten_export.sources.families import SCALED_BY_LENGTH, batch_limit, family_of, usable_positions
from whiten_export.sources.marking import marked_attention
from whiten_export.sources.model import TokenModel, WeightCounts, parameters_sha256
from whiten_export.sources.network import (
    adapter_rows,
    expert_bytes,
    experts_note,
    grown_note,
    load_config,
    load_network,
    load_tokenizer,
    network_class,
    one_thread,
    quiet,
    unknown_class_note,
)
from whiten_export.sources.own_code import (
    code_that_ran,
    ignored_code,
    is_own_code,
    other_version,
    restore_buffers,
    way_to_code,
)
from whiten_export.sources.sentence_transformers import encode_published
from whiten_export.sources.tokenizer import describe_tokenizer
from whiten_runtime.bundle.manifest import Pooling, pooling_modes
from whiten_runtime.errors import ProviderError, UsageError, WhitenError

_MOST_LAYERS = 10_000
"""Largest number of layers of a network: more are a mistake of its config."""


class PyTorchModel(TokenModel):
    """Reads a checkpoint with transformers; weights are in memory from a graph to its reference."""

    _loaded: nn.Module | None = None  # network of the last graph, until its reference is made

    def __init__(self, checkpoint: Checkpoint, trust_remote_code: bool, device: str) -> None:
        _check_device(device)
        self.checkpoint, self._trust, self._device = checkpoint, trust_remote_code, device
        self._config = load_config(checkpoint, trust_remote_code)
        for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
            if not isinstance(getattr(self._config, name, None), int):
                kind = self._config.model_type
                way = "" if way_to_code(checkpoint) else way_to_text(self._config.to_dict())
                raise UsageError(
                    f"'{checkpoint.model}' is of type '{kind}', without {name}; wanted a text encoder{way}"
                )
        count: int = self._config.num_hidden_layers
        if count > _MOST_LAYERS:
            raise UsageError(f"'{checkpoint.model}' says that it has {count} layers; wanted {_MOST_LAYERS:,} at most")
        with quiet():  # conversions of older tokenizers warn
            self.tokenizer = describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code))
        own = ("AutoConfig", network_class(checkpoint, self._config).__name__) if trust_remote_code else ()
        runs = (*own, "AutoTokenizer") if trust_remote_code else ()
        width: int = getattr(self._config, family_of(self._config.model_type).width)
        projects = width != self._config.hidden_size
        self.layers = (count,) if projects else tuple(range(count + 1))
        self.default_layers = (count,) if projects else recommended_layers(checkpoint, count)
        limited = usable_positions(self._config, 0) is not None
        empty = empty_positions(self._config, trust_remote_code) if limited else 0
        self.stated_positions = usable_positions(self._config, empty)
        self.positions = self.stated_positions if limited and has_positions(self._config, trust_remote_code) else None
        self.supported = family_of(self._config.model_type).supported
        self.record = source_record(
            checkpoint,
            self._config.model_type,
            count,
            width,
            ignored_code(checkpoint, runs),
            code_that_ran(checkpoint, runs),
            network_sha256(checkpoint, self._config, own, empty if self.supported else None, trust_remote_code),
        )
        before = self._config.vocab_size
        rows = adapter_rows(checkpoint.adapter) or before
        self._more_rows: int = rows - before
        self.expert_bytes = expert_bytes(self._config)
        notes = (unknown_class_note(checkpoint, self._config), grown_note(checkpoint, rows, before))
        self.notes = tuple(filter(None, (*notes, experts_note(self.expert_bytes))))
        self.batch_limit = batch_limit(self._config)
        self.vocab_size: int = self.tokenizer.surplus_from or rows
        self.client_config: Mapping[str, Any] = _client_config(self._config) | {"vocab_size": rows}

    def count_weights(self, layers: tuple[int, ...]) -> WeightCounts:
        """Count the weights by the config: those of blocks above the highest layer are not exported."""
        counts = count_weights(self.checkpoint, self._config, self._trust, max(layers))
        more = self._more_rows * self._config.hidden_size
        return replace(counts, loaded=counts.loaded + more, exported=counts.exported + more)

    def hidden_states(self, layers: tuple[int, ...], pooling: Pooling) -> HiddenStates:
        """Trace the network. Nodes that the layers do not need, such as the blocks above them, are not in the graph."""
        self._loaded = self._network("pooler" in pooling_modes(pooling))
        # What tracing leaves in modules and buffers stays in a copy; its parameters are those of the reference.
        network = copy.deepcopy(self._loaded, {id(parameter): parameter for parameter in self._loaded.parameters()})
        fix_frequencies(network)
        _gather_experts(network)
        model = trace(network, layers)
        pooler = describe_pooler(network) if "pooler" in pooling_modes(pooling) else None
        if self.tokenizer.surplus_from is not None:
            map_surplus(model, self.tokenizer.surplus_from, self.tokenizer.unknown_token_id)
        return HiddenStates(model, tuple(model.graph.outputs), pooler=pooler)

    def reference(self, layers: tuple[int, ...], pooling: Pooling) -> Reference:
        """Return the whole network as the reference, with all its hidden states; its weights are the last graph's."""
        network = self._loaded or self._network("pooler" in pooling_modes(pooling))
        self._loaded = None
        return TorchReference(network.to(self._device), layers, pooling, known_code=not self._trust)

    def published(self, cases: Sequence[Case], max_seq_length: int | None) -> PublishedVectors | None:
        """Return the vectors of sentence-transformers for texts with prompts; None without its files."""
        if not self.checkpoint.describes_vectors:
            return None
        return encode_published(self.checkpoint, cases, max_seq_length, self._trust, self._device)

    def _network(self, pooler: bool) -> nn.Module:
        network, digest = load_network(self.checkpoint, self._config, self._trust, pooler)
        modules = self.checkpoint.authors.modules if self.checkpoint.authors else ()
        parameters = parameters_sha256(digest, modules)
        self.record = msgspec.structs.replace(self.record, parameters_sha256=parameters)
        restore_buffers(network)
        _check_both_directions(self.checkpoint, network)
        return network


_BOTH_DIRECTIONS = {"is_causal": (False,), "use_bidirectional_attention": (True, "all")}
"""Settings of a config, and of modules of own code, by which tokens attend to later ones too."""


def _check_both_directions(checkpoint: Checkpoint, network: nn.Module) -> None:
    """Refuse a network in which no token attends to later ones, though its config or its own code asks for that.

    transformers reads `is_causal` of a config since 5.2, and not for all architectures; the other setting is Gemma's
    alone. Own code that makes its mask in `_update_causal_mask` gets a causal one: no version since 4.53 calls it.
    """
    setting = _both_directions(network.config)
    own = setting is None and is_own_code(network)
    setting = next(filter(None, map(_both_directions, network.modules())), None) if own else setting
    mixed = own and any(getattr(module, "is_causal", None) is True for module in network.modules())
    if setting is None or mixed:  # a causal network may have parts that are not, such as one for images
        return
    rows: int = network.config.vocab_size  # type: ignore[union-attr, assignment]
    ids = torch.tensor([[rows // 2, rows // 2], [rows // 2, rows // 3]])
    first = _run(network, ids, torch.ones_like(ids))[-1][:, 0]
    if torch.allclose(first[0], first[1], rtol=1e-5, atol=0):
        raise WhitenError(
            f"'{checkpoint.model}': its {'own code' if own else 'config.json'} sets {setting}, but transformers "
            f"{transformers.__version__} lets no token of this {model_type(network)} network attend to later ones; "
            'write "is_causal": false into config.json, which transformers reads since 5.2, or install a newer version'
        )


def _both_directions(settings: Any) -> str | None:
    """Return the setting of a config or a module by which tokens attend to later ones too; None for none."""
    named = ((name, getattr(settings, name, None)) for name in _BOTH_DIRECTIONS)
    return next((f"{name} to {value}" for name, value in named if value in _BOTH_DIRECTIONS[name]), None)


def fix_frequencies(network: nn.Module) -> None:
    """Let rotary embeddings have the frequencies of batches that are not scaled, whatever the length."""
    for module in network.modules():
        kinds: Any = getattr(module, "rope_type", None)
        if kinds in SCALED_BY_LENGTH:
            module.__dict__["rope_type"] = "default"
        elif isinstance(kinds, dict):  # kinds for each type of layer
            kinds.update({name: "default" for name, kind in kinds.items() if kind in SCALED_BY_LENGTH})


def _gather_experts(network: nn.Module) -> None:
    """Let a mixture of experts gather the weights of each token's experts: a loop over experts depends on the texts."""
    with suppress(AttributeError, ValueError):  # of a network without experts, or of transformers 4
        network.set_experts_implementation("batched_mm")  # type: ignore[operator]


class _Layers(nn.Module):
    """Computes only the chosen hidden states of a network."""

    def __init__(self, network: nn.Module, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        self.layers = layers

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        states = hidden_states(self.network, input_ids, attention_mask)
        return tuple(states[layer] for layer in self.layers)


def trace(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
    """Trace a network from token ids to hidden states, named `hidden_states.N`."""
    # Several rows, one of them padded: the exporter would treat sizes of 1 and full masks as constants.
    rows: int = network.config.vocab_size  # type: ignore[union-attr, assignment]
    input_ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [6, 7, 8, 0, 0]]) % rows
    attention_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    want = _run(network, input_ids, attention_mask)  # whose errors say more than those of the exporter
    try:
        with (
            quiet(),
            redirect_stderr(io.StringIO()),
            torch.no_grad(),
            _ordered_sets(network),
            marked_attention(network, want, lambda: hidden_states(network, input_ids, attention_mask)),
        ):
            program = torch.onnx.export(
                _Layers(network, layers).eval(),
                (input_ids, attention_mask),
                dynamo=True,
                opset_version=OPSET,
                input_names=["input_ids", "attention_mask"],
                output_names=[f"hidden_states.{layer}" for layer in layers],
                dynamic_shapes=(axes, axes),
                optimize=False,
                verbose=False,
            )
            assert program is not None
            traced = list(program.model.graph.initializers.values())
            program.optimize()
    except torch.onnx.OnnxExporterError as error:
        if any(name in _innermost(error) for name in _BRANCHES):
            raise WhitenError(
                f"with PyTorch {torch.__version__} and transformers {transformers.__version__}, a network of type "
                f"'{model_type(network)}' chooses what it computes by the length or the words of a text, which one "
                "graph for all texts cannot: it is not supported; whiten --debug shows PyTorch's report"
            ) from error
        raise WhitenError(
            f"PyTorch cannot export a network of type '{model_type(network)}': {_innermost(error)}; whiten "
            "--debug export shows the whole report"
        ) from error
    model: ir.Model = program.model
    strip(model)
    drop_weights(value for value in traced if value.graph is not model.graph)
    return model


class _OrderedSet(set[Any]):
    """Iterates in the order of its items as text, in every process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


@contextmanager
def _ordered_sets(network: nn.Module) -> Iterator[None]:
    """Let the network's code make sets that have an order: kinds of layers, over which ModernBERT and others iterate.

    The order of strings in a set differs from process to process, and with it the graph.
    """
    names = {type(module).__module__ for module in network.modules()}
    modules = [sys.modules[name] for name in sorted(names) if name.startswith("transformers.models.")]
    for module in modules:
        vars(module)["set"] = _OrderedSet
    try:
        yield
    finally:
        for module in modules:
            del vars(module)["set"]


_BRANCHES = ("GuardOnDataDependentSymNode", "ConstraintViolationError")
"""Errors of PyTorch's exporter for code that branches on a value of a text, or takes texts of some lengths only."""


def _run(network: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Sequence[Tensor]:
    """Return all hidden states of a network, and say which failed if it does not run on token ids and a mask."""
    try:
        with quiet(), one_thread(), torch.no_grad():
            return hidden_states(network, input_ids, attention_mask)
    except WhitenError:
        raise
    except Exception as error:  # from unknown code
        config: Any = network.config
        other = other_version(config.transformers_version) if is_own_code(network) else ""
        raise WhitenError(
            f"a network of type '{model_type(network)}' does not run on token ids and a mask: "
            f"{_innermost(error)}{other}"
        ) from error


def _innermost(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}"


def _client_config(config: Any) -> dict[str, Any]:
    stated = config.architectures if isinstance(config.architectures, list) else None
    described = {
        "architectures": stated or [type(config).__name__.replace("Config", "Model")],
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
    }
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        described["max_position_embeddings"] = positions
    return {
        key: value for key, value in config.to_dict().items() if key not in ("_name_or_path", "auto_map")
    } | described


def _check_device(device: str) -> None:
    kind, _, index = device.partition(":")
    if kind != "cpu" and (not torch.cuda.is_available() or int(index or 0) >= torch.cuda.device_count()):
        raise ProviderError(f"device is '{device}', but PyTorch finds no such CUDA device here; use --device cpu")


class TorchReference(Reference):
    """Computes a network's hidden states, pooled by numpy in float64.

    Texts that are computed side by side have one thread each: no thread waits for another at every operator, and the
    numbers do not depend on how many there are.
    """

    def __init__(self, network: nn.Module, layers: tuple[int, ...], pooling: Pooling, known_code: bool) -> None:
        """Take over a network in float32, of which `known_code` says whether its code is that of transformers."""
        self._network, self._layers, self._modes = with_own_attention(network), layers, pooling_modes(pooling)
        self._in_threads = known_code and keeps_nothing(network)
        self._device = next(network.parameters()).device
        self.name = f"torch {torch.__version__}, float32"

    @contextmanager
    def side_by_side(self) -> Iterator[int]:
        """Yield the number of texts that may be computed at a time, each in a thread; 1 on a GPU."""
        with quiet():  # here, since warnings are those of all threads
            if not self._in_threads or self._device.type != "cpu":
                yield 1
                return
            with one_thread() as threads:
                yield threads

    def close(self) -> None:
        """Free the weights: PyTorch's exporter keeps parameters that a graph did not need."""
        for parameter in self._network.parameters():
            parameter.data = parameter.data.new_empty(0)

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return the pooled hidden states of each layer, [layers, batch_size, d]."""
        ids, mask = (torch.from_numpy(array).to(self._device) for array in (input_ids, attention_mask))
        with torch.no_grad():
            states = hidden_states(self._network, ids, mask.clamp(max=1))
            chosen = [states[layer] for layer in self._layers]
            poolers = [_apply_pooler(self._network, state) for state in chosen] if "pooler" in self._modes else []
        arrays = [state.cpu().numpy() for state in chosen]
        parts = [
            np.stack([vectors.cpu().numpy().astype(np.float64) for vectors in poolers])
            if mode == "pooler"
            else pool(arrays, attention_mask, mode)
            for mode in self._modes
        ]
        return np.concatenate(parts, axis=2)


def keeps_nothing(network: nn.Module) -> bool:
    """Return whether a network of a known architecture keeps nothing between calls, so that threads can share it."""
    known = family_of(str(getattr(getattr(network, "config", None), "model_type", ""))).supported
    return known and batch_limit(getattr(network, "config", None)) is None


def with_own_attention(network: nn.Module) -> nn.Module:
    """Return a network that computes attention as transformers does by default: fused, where it can."""
    with quiet(), suppress(AttributeError, ImportError, ValueError):  # of a network without it, or of its own code
        network.set_attn_implementation("sdpa")  # type: ignore[operator]
    return network


def hidden_states(network: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Sequence[Tensor]:
    """Return all hidden states of a network, each [batch_size, sequence_length, d]."""
    family = family_of(model_type(network))
    inputs = {"input_ids": input_ids}
    if family.mixes_embeddings:
        embeddings = network.get_input_embeddings()(input_ids)  # type: ignore[operator]
        inputs = {"inputs_embeds": embeddings * attention_mask.unsqueeze(2)}
    output = network(**inputs, attention_mask=attention_mask, output_hidden_states=True, **family.arguments)
    states: Sequence[Tensor] | None = getattr(output, "hidden_states", None)
    if states is None:
        raise WhitenError(f"a network of type '{model_type(network)}' gives no hidden states, so none can be pooled")
    count = getattr(getattr(network, "config", None), "num_hidden_layers", None)
    if isinstance(count, int) and len(states) != count + 1:
        raise WhitenError(
            f"this {model_type(network)} network gives {len(states)} hidden states for the {count} layers of its "
            f"config; wanted {count + 1}: a layer's number would not be that of the config"
        )
    last: Tensor | None = getattr(output, "last_hidden_state", None)
    if last is None or last is states[-1]:
        return states
    if last.shape[-1] != states[-1].shape[-1]:  # as of voyage-4-nano's own code
        raise WhitenError(
            f"this {model_type(network)} network projects its last states from {states[-1].shape[-1]} to "
            f"{last.shape[-1]} numbers, which is not supported"
        )
    return (*states[:-1], last)  # own code may list the last state without the norm behind the last block


def model_type(network: nn.Module) -> str:
    """Return transformers' name of a network's architecture."""
    return str(getattr(getattr(network, "config", None), "model_type", "unknown"))


def describe_pooler(network: nn.Module) -> Dense:
    """Return the weights of a network's pooler."""
    linear, activation = _parts(network)
    bias = None if linear.bias is None else linear.bias.detach().cpu().numpy().astype(np.float32)
    weight = linear.weight.detach().cpu().numpy().astype(np.float32)
    return Dense(np.ascontiguousarray(weight.T), bias, type(activation).__name__)


def _apply_pooler(network: nn.Module, state: Tensor) -> Tensor:
    """Apply the network's own pooler to a hidden state, [batch_size, sequence_length, d] to [batch_size, d]."""
    linear, activation = _parts(network)
    pooled: Tensor = activation(linear(state[:, 0]))
    return pooled


def _parts(network: nn.Module) -> tuple[nn.Linear, nn.Module]:
    pooler = getattr(network, "pooler", None)
    linear, activation = getattr(pooler, "dense", None), getattr(pooler, "activation", None)
    if isinstance(pooler, nn.Linear):  # ALBERT's
        linear, activation = pooler, getattr(network, "pooler_activation", None)
    if not isinstance(linear, nn.Linear) or not isinstance(activation, nn.Tanh):
        raise UsageError(
            f"a {model_type(network)} network has no pooler (dense and tanh over the first token); name another pooling"
        )
    return linear, activation
