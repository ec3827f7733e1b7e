"""Give vectors as tensors of torch, which nothing else in the runtime imports."""

from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import NDArray

from whiten_runtime.errors import MissingPackageError

if TYPE_CHECKING:
    from torch import Tensor as Tensor


@overload
def as_tensors(vectors: NDArray[Any], whole: Literal[True]) -> "Tensor": ...
@overload
def as_tensors(vectors: NDArray[Any], whole: bool) -> "Tensor | list[Tensor]": ...
def as_tensors(vectors: NDArray[Any], whole: bool) -> "Tensor | list[Tensor]":
    """Return vectors [n, k] as one tensor, or as a list of n tensors [k], on the CPU and of the same dtype."""
    try:
        import torch
    except ImportError:
        raise MissingPackageError(
            "tensors need torch; install it with pip install torch, or leave convert_to_tensor and convert_to_numpy out"
        ) from None
    tensor = torch.from_numpy(vectors)
    return tensor if whole else list(tensor)
