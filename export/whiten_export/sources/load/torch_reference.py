"""Run a PyTorch network in float64 as the reference, with one of its blocks in that precision at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Condition
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whiten_export.graph.poolings import pool
from whiten_export.proof.reference import Dense, Float64Array, Reference
from whiten_export.sources.describe.families import batch_limit, family_of
from whiten_export.sources.load.network import one_thread, quiet
from whiten_runtime.bundle.records import Pooling, pooling_modes
from whiten_runtime.errors import UsageError, WhitenError

_SIDE_BY_SIDE = 4
"""Number of texts for which a block is converted once, where texts are computed side by side."""


class TorchReference(Reference):
    """Computes a network's hidden states, pooled by numpy in float64.

    Texts that are computed side by side have one thread each: no thread waits for another at every operator, and the
    numbers do not depend on how many there are.
    """

    def __init__(self, network: nn.Module, layers: tuple[int, ...], pooling: Pooling, known_code: bool) -> None:
        """Take over a network in float32, of which `known_code` says whether its code is that of transformers."""
        self._network, self._layers, self._modes = network, layers, pooling_modes(pooling)
        self._in_threads = known_code and keeps_nothing(network)
        self._device = next(network.parameters()).device
        self._weights = _WideWeights(network, known_code and family_of(model_type(network)).supported)
        self.name = f"torch {torch.__version__}, float64"

    @contextmanager
    def side_by_side(self) -> Iterator[int]:
        """Yield the number of texts that may be computed at a time, each in a thread; 1 on a GPU."""
        with quiet():  # here, since warnings are those of all threads
            if not self._in_threads or self._device.type != "cpu":
                yield 1
                return
            with one_thread() as threads:
                yield max(threads, _SIDE_BY_SIDE) if self._weights.blocks else threads

    @contextmanager
    def for_long_texts(self) -> Iterator[None]:
        """Compute in float32, with PyTorch's fused attention where the network has it, until the context is closed."""
        network: Any = self._network
        implementation = getattr(network.config, "_attn_implementation", None)
        try:
            network.set_attn_implementation("sdpa")
        except (AttributeError, ImportError, ValueError):  # of a network without it, or of its own code
            implementation = None
        try:
            with quiet(), self._weights.narrow():
                yield
        finally:
            if implementation is not None:
                network.set_attn_implementation(implementation)

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


_SAFE = find_spec("transformers.utils.output_capturing") is not None
"""Whether transformers collects hidden states for each thread apart; before version 5 it replaced blocks' methods."""


def keeps_nothing(network: nn.Module) -> bool:
    """Return whether a network of a known architecture keeps nothing between calls, so that threads can share it."""
    known = family_of(str(getattr(getattr(network, "config", None), "model_type", ""))).supported
    return _SAFE and known and batch_limit(getattr(network, "config", None)) is None


class _WideWeights:
    """Keeps a network in float64, but for its blocks and word embeddings, which are in float32 in memory.

    A block is converted when a thread enters it, and only one is at a time: threads that reach another block wait until
    the last one has left. Rows of word embeddings are converted after they are looked up. Every number of float32 is
    one of float64, so that vectors are those of a network in float64.
    """

    def __init__(self, network: nn.Module, divide: bool) -> None:
        self._network, self._turn, self._wide = network, Condition(), True
        self._open: nn.Module | None = None
        self._inside, self._stored = 0, list[tuple[nn.Parameter, Tensor]]()
        self.blocks = list(_blocks(network)) if divide else []
        for block in self.blocks:
            block.forward = self._converted(block, block.forward)  # networks that call it directly pass hooks by
        words: Any = network.get_input_embeddings() if divide else None  # type: ignore[operator]
        shared = [module for module in network.modules() if words and getattr(module, "weight", None) is words.weight]
        tables = shared if all(type(table) is nn.Embedding and table.max_norm is None for table in shared) else []
        for table in tables:
            table.register_forward_hook(self._convert_rows)
        held = {id(parameter) for part in (*self.blocks, *tables) for parameter in part.parameters()}
        self._others = [parameter for parameter in network.parameters() if id(parameter) not in held]
        self._convert_others(torch.float64)

    @contextmanager
    def narrow(self) -> Iterator[None]:
        """Have the whole network in float32 until the context is closed."""
        self._wide = False
        self._convert_others(torch.float32)
        try:
            yield
        finally:
            self._convert_others(torch.float64)
            self._wide = True

    def _convert_others(self, kind: torch.dtype) -> None:
        for tensor in (*self._others, *self._network.buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(kind)

    def _convert_rows(self, module: nn.Module, inputs: object, rows: Tensor) -> Tensor:
        return rows.double() if self._wide else rows

    def _converted(self, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass of a block that is in float64 meanwhile."""

        def run(*arguments: Any, **options: Any) -> Any:
            if not self._wide:
                return forward(*arguments, **options)
            self._enter(block)
            try:
                return forward(*arguments, **options)
            finally:
                self._leave()

        return run

    def _enter(self, block: nn.Module) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._open in (None, block))
            self._inside += 1
            if self._open is None:
                self._open = block
                self._stored = [(parameter, parameter.data) for parameter in block.parameters()]
                for parameter, data in self._stored:
                    parameter.data = data.double()

    def _leave(self) -> None:
        with self._turn:
            self._inside -= 1
            if not self._inside:
                for parameter, data in self._stored:
                    parameter.data = data
                self._stored, self._open = [], None
                self._turn.notify_all()


def _blocks(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a network's lists, which it calls one after another."""
    for module in network.children():
        if isinstance(network, nn.ModuleList) and not isinstance(module, nn.ModuleList):
            yield module
        else:
            yield from _blocks(module)


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
    return (*states[:-1], last)  # transformers 4 lists ModernBERT's last state without the norm behind the last block


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
