"""Run Python code that comes with a checkpoint, and give its network what transformers 5 takes from it as it loads.

Its weights are replaced by random numbers, where the code's `_init_weights` writes them, and its constants are lost.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from whiten_runtime.errors import WhitenError, parse_whole

if TYPE_CHECKING:
    from torch import Tensor, nn


def other_version(stated: object) -> str:
    """Return what is said of own code that fails, by the version of transformers that a config was written by."""
    major = parse_whole(str(stated).partition(".")[0])
    if major is None or major >= 5:
        return ""
    return (
        f"; its own code may be for transformers {stated}, which wrote config.json, and {version('transformers')} is "
        "installed: use a repository of the model whose code is for transformers 5"
    )


_OWN_CODE = "transformers_modules."
"""Package into which transformers imports a checkpoint's own code."""


_RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
"""Ends of names in files, those of TensorFlow and of older versions of PyTorch, and what transformers makes of them."""


def restore_weights(network: "nn.Module", files: Collection[Path]) -> tuple[str, ...]:
    """Write the stored weights once more into a network of own code; return the weights that no file has by their name.

    transformers 5 calls `_init_weights` of the code after it has loaded the weights. Code that writes to `weight.data`
    then replaces them: all of them before 5.13, and those of modules with a constant that is not stored since.
    """
    if not is_own_code(network):
        return ()
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    wanted = network.state_dict(keep_vars=True)
    written = set()
    import torch

    with torch.no_grad():
        for file in files:
            for key, stored in _tensors(file):
                for name in names_in_network(key, prefix) & wanted.keys():
                    weight = wanted[name]
                    written.add(id(weight))
                    if not torch.equal(weight, stored := stored.to(weight.device, weight.dtype)):
                        weight.copy_(stored)
    return tuple(name for name, weight in network.named_parameters() if id(weight) not in written)


def names_in_network(key: str, prefix: str) -> set[str]:
    """Return the names by which a network may have a weight of a file, which may be of another time."""
    for old, new in _RENAMED.items():
        if key.endswith(old):
            key = key.removesuffix(old) + new
            break
    return {key, key.removeprefix(prefix), prefix + key}


def is_own_code(network: "nn.Module") -> bool:
    """Return whether a network is of a class that comes with the checkpoint."""
    return type(network).__module__.startswith(_OWN_CODE)


def _tensors(file: Path) -> Iterator[tuple[str, "Tensor"]]:
    """Yield the tensors of a file of weights with their names."""
    import torch

    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)
    else:
        yield from torch.load(file, map_location="cpu", weights_only=True).items()


def restore_buffers(network: "nn.Module") -> None:
    """Compute the constants of a network's own code that no file stores, such as frequencies of rotary embeddings.

    transformers 5 makes a network without memory before it loads weights. Buffers that are not stored
    (`persistent=False`) then have any numbers; it computes only those of its own classes anew.

    Raises:
        WhitenError: the network cannot be made a second time.
    """
    if not is_own_code(network) or not any(_constants(network)):
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


def _constants(network: "nn.Module") -> Iterator[tuple[str, str, "nn.Module", "Tensor"]]:
    """Yield the buffers that no file stores: the name of the module, that of the buffer, the module, the buffer."""
    for name, module in network.named_modules():
        for key in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(key)) is not None:
                yield name, key, module, buffer


@contextmanager
def _without_parameters() -> Iterator[None]:
    """Let modules that are made have parameters without memory, and buffers with their numbers."""
    from torch import nn

    register = nn.Module.register_parameter

    def register_shape(module: "nn.Module", name: str, parameter: "nn.Parameter | None") -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    made: Any = register_shape
    nn.Module.register_parameter = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
