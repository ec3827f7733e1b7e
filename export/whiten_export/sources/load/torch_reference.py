"""Run a PyTorch network in float32, with its own attention, as the reference."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec

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


_SAFE = find_spec("transformers.utils.output_capturing") is not None
"""Whether transformers collects hidden states for each thread apart; before version 5 it replaced blocks' methods."""


def keeps_nothing(network: nn.Module) -> bool:
    """Return whether a network of a known architecture keeps nothing between calls, so that threads can share it."""
    known = family_of(str(getattr(getattr(network, "config", None), "model_type", ""))).supported
    return _SAFE and known and batch_limit(getattr(network, "config", None)) is None


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
