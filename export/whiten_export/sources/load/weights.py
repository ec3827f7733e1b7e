"""Check files of weights, and give a network with code of its own what transformers 5 takes from it as it loads them.

Its weights are replaced by random numbers, where the code's `_init_weights` writes them, and its constants are lost.
"""

import math
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from whiten_runtime.errors import WhitenError

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def load_state(path: Path) -> dict[str, Tensor]:
    """Load a file of PyTorch weights without their numbers, which leaves names and types; no code of it runs."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return dict(torch.load(path, map_location="meta", weights_only=True).items())
    except Exception as error:  # torch.load's exceptions share no base class
        raise WhitenError(f"{path}: {_refusal(error)}") from None


@contextmanager
def explaining(files: Iterable[Path]) -> Iterator[None]:
    """Say which of several weight files is at fault, if loading them in the block fails by one of them."""
    try:
        yield
    except Exception:
        for path in sorted(files):
            if path.suffix == ".bin":
                load_state(path)
            elif path.suffix == ".safetensors":
                _opened(path)
        raise


def _opened(path: Path) -> Any:
    """Open a file of safetensors, whose header is checked."""
    try:
        return safe_open(path, "numpy")
    except (OSError, SafetensorError) as error:
        raise WhitenError(f"{path}: is damaged, or no file of safetensors ({error}); copy the model again") from None


def tensor_kinds(path: Path) -> dict[str, str]:
    """Return the type of every tensor in a file of weights, such as F32 and INT8; none for another file."""
    if path.suffix == ".bin":
        state = load_state(path)
        tensors = {key: one for key, one in state.items() if isinstance(one, Tensor)}
        return {key: str(one.dtype).removeprefix("torch.").upper() for key, one in tensors.items()}
    if path.suffix != ".safetensors":
        return {}
    file = _opened(path)
    return {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118


def check_numbers(network: nn.Module, files: Sequence[Path], optional: Sequence[re.Pattern[str]] = ()) -> None:
    """Check that all weights are finite, and that none is stored as whole numbers, which loading converts.

    Optional weights that no file has are left out: code may leave them as memory was.
    """
    parameters = dict(network.named_parameters())
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    places = dict[str, str]()
    for file in files:
        for key, kind in tensor_kinds(file).items():
            for name in _names(key, prefix) & parameters.keys():
                if kind.startswith(("I", "U", "BOOL")):
                    raise WhitenError(f"{file}: '{key}' holds {kind}; wanted weights, which are floating-point numbers")
                places[name] = f"{file}: '{key}'"
    for name, parameter in parameters.items():
        if _is_finite(parameter.detach()):
            continue
        place = places.get(name)
        if place is None and any(pattern.search(name) for pattern in optional):
            continue
        at = place or f"{files[0] if len(files) == 1 else files[0].parent}: '{name}'"
        raise WhitenError(f"{at} holds NaN or infinity; copy the model again, or use another checkpoint of it")


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, by the smallest and the largest: `isfinite` takes 1.5 times the memory."""
    return not tensor.numel() or all(math.isfinite(bound.item()) for bound in tensor.aminmax())


def _refusal(error: Exception) -> str:
    """Return what is wrong with a file; torch's own words tell how to run what is in it."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror}); check its permissions"
    if match := _GLOBAL.search(str(error)):
        return (
            f"holds more than weights: {match[1]}, which could do anything when it is read; wanted tensors alone, such "
            "as in a file of safetensors"
        )
    return "is damaged, or no file of PyTorch weights; copy the model again, or use one with safetensors"


_OWN_CODE = "transformers_modules."
"""Package into which transformers imports a checkpoint's own code."""


_RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
"""Ends of names in files, those of TensorFlow and of older versions of PyTorch, and what transformers makes of them."""


def is_transformers_4() -> bool:
    """Return whether the installed transformers is of version 4, which loads networks and configs in another way."""
    return bool(transformers.__version__.startswith("4."))


def restore_weights(network: nn.Module, files: Collection[Path]) -> tuple[str, ...]:
    """Write the stored weights once more into a network of own code; return the weights that no file has by their name.

    transformers 5 calls `_init_weights` of the code after it has loaded the weights. Code that writes to `weight.data`
    then replaces them: all of them before 5.13, and those of modules with a constant that is not stored since.
    """
    if is_transformers_4() or not is_own_code(network):
        return ()
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    wanted = network.state_dict(keep_vars=True)
    written = set()
    with torch.no_grad():
        for file in files:
            for key, stored in _tensors(file):
                for name in _names(key, prefix) & wanted.keys():
                    weight = wanted[name]
                    written.add(id(weight))
                    if not torch.equal(weight, stored := stored.to(weight.device, weight.dtype)):
                        weight.copy_(stored)
    return tuple(name for name, weight in network.named_parameters() if id(weight) not in written)


def _names(key: str, prefix: str) -> set[str]:
    """Return the names by which a network may have a weight of a file, which may be of another time."""
    for old, new in _RENAMED.items():
        if key.endswith(old):
            key = key.removesuffix(old) + new
            break
    return {key, key.removeprefix(prefix), prefix + key}


def is_own_code(network: nn.Module) -> bool:
    """Return whether a network is of a class that comes with the checkpoint."""
    return type(network).__module__.startswith(_OWN_CODE)


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file of weights with their names."""
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)
    else:
        yield from torch.load(file, map_location="cpu", weights_only=True).items()


def restore_buffers(network: nn.Module) -> None:
    """Compute the constants of a network's own code that no file stores, such as frequencies of rotary embeddings.

    transformers 5 makes a network without memory before it loads weights. Buffers that are not stored
    (`persistent=False`) then have any numbers; it computes only those of its own classes anew.

    Raises:
        WhitenError: the network cannot be made a second time.
    """
    if is_transformers_4() or not is_own_code(network) or not any(_constants(network)):
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


def _constants(network: nn.Module) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
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
