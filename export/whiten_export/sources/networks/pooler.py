"""Find and apply a network's pooler: a dense layer and tanh over the state of the first token, as BERT's."""

import numpy as np
from torch import Tensor, nn

from whiten_export.proof.modules import Dense
from whiten_runtime.errors import UsageError


def describe_pooler(network: nn.Module) -> Dense:
    """Return the weights of a network's pooler."""
    linear, activation = _parts(network)
    bias = None if linear.bias is None else linear.bias.detach().cpu().numpy().astype(np.float32)
    weight = linear.weight.detach().cpu().numpy().astype(np.float32)
    return Dense(np.ascontiguousarray(weight.T), bias, type(activation).__name__)


def apply_pooler(network: nn.Module, state: Tensor) -> Tensor:
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
        kind = getattr(getattr(network, "config", None), "model_type", "unknown")
        raise UsageError(f"a {kind} network has no pooler (dense and tanh over the first token); name another pooling")
    return linear, activation
