"""Give a network with code of its own the constants that transformers 5 loses when it loads the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import nn

from whiten_runtime.errors import WhitenError

_OWN_CODE = "transformers_modules."
"""Package into which transformers imports a checkpoint's own code."""


def restore_buffers(network: nn.Module) -> None:
    """Compute the constants of a network's own code that no file stores, such as frequencies of rotary embeddings.

    transformers 5 makes a network without memory before it loads weights. Buffers that are not stored
    (`persistent=False`) then have any numbers; it computes only those of its own classes anew.

    Raises:
        WhitenError: the network cannot be made a second time.
    """
    own_code = type(network).__module__.startswith(_OWN_CODE)
    if not own_code or transformers.__version__.startswith("4.") or not any(_constants(network)):
        return
    try:
        with _without_parameters():
            made = type(network)(deepcopy(network.config))
        computed = {(name, key): buffer for name, key, _, buffer in _constants(made)}
        for name, key, module, buffer in list(_constants(network)):
            module._buffers[key] = computed[name, key].to(buffer.device, buffer.dtype).reshape(buffer.shape)
    except Exception as error:  # from unknown code
        raise WhitenError(
            f"{type(network).__name__} has constants that its files do not store, and transformers loses them; they "
            f"cannot be computed anew: {type(error).__name__} {' '.join(str(error).split())[:200]}"
        ) from error


def _constants(network: nn.Module) -> Iterator[tuple[str, str, nn.Module, torch.Tensor]]:
    """Yield the buffers that no file stores: the name of the module, that of the buffer, the module, the buffer."""
    for name, module in network.named_modules():
        for key in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(key)) is not None:
                yield name, key, module, buffer


@contextmanager
def _without_parameters() -> Iterator[None]:
    """Let modules that are made have parameters without memory, and buffers with their numbers."""
    register = nn.Module.register_parameter

    def register_shape(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    made: Any = register_shape
    nn.Module.register_parameter = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
