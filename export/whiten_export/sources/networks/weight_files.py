"""Read files of PyTorch weights, which are pickles, without running anything of them."""

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from whiten_runtime.errors import WhitenError

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def load_state(path: Path) -> dict[str, NDArray[np.float32]]:
    """Load a file of PyTorch weights as float32, without running code of it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # torch.load's exceptions share no base class
        raise WhitenError(f"{path}: {_refusal(error)}") from None


@contextmanager
def explaining(files: Iterable[Path]) -> Iterator[None]:
    """Say which of several weight files is at fault, if loading them in the block fails by one that is a pickle."""
    try:
        yield
    except Exception:
        for path in sorted(files):
            if path.suffix == ".bin":
                load_state(path)
        raise


def _refusal(error: Exception) -> str:
    """Return what is wrong with a file; torch's own words tell how to run what is in it."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror}); check its permissions"
    if found := _GLOBAL.search(str(error)):
        return (
            f"holds more than weights: {found[1]}, which could do anything when it is read; wanted tensors alone, such "
            "as in a file of safetensors"
        )
    return "is damaged, or no file of PyTorch weights; copy the model again, or use one with safetensors"
