"""Quantise vectors as sentence-transformers does, and give them as tensors of torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.checks import one_of
from whiten_runtime.errors import MissingPackageError, TextError, UsageError
from whiten_runtime.inference.vectors import numbers_of

_STEPS = 255
_SIGN_BIT = 128
"""What is subtracted from an unsigned byte to make it a signed one."""


@dataclass(frozen=True)
class Quantizer:
    """Quantises vectors; none of them depends on another."""

    # "int8" and "uint8" give k bytes a vector, "binary" (int8) and "ubinary" (uint8) k / 8, rounded up
    precision: VectorPrecision
    # lower and upper end of each coordinate's range, float32 [2, k], for int8 and uint8
    ranges: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        precision: VectorPrecision,
        ranges: ArrayLike | None,
        width: int,
        stored: Callable[[], NDArray[np.float32]],
    ) -> "Quantizer | None":
        """Return what quantises vectors of `width` coordinates; None for float32."""
        one_of("precision", precision, get_args(VectorPrecision))
        if precision in ("int8", "uint8"):
            return cls(precision, stored() if ranges is None else _checked(ranges, width))
        if ranges is not None:
            raise UsageError(f"ranges are for precision int8 and uint8, not {precision}; leave them out")
        return None if precision == "float32" else cls(precision)

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """Return vectors [n, k] as int8 or uint8, [n, k] or [n, k / 8] rounded up."""
        if not np.isfinite(vectors).all():
            raise TextError(f"a vector is not finite and has no {self.precision}; take float32 to see which one it is")
        signed = self.precision in ("int8", "binary")
        found = np.packbits(vectors > 0, axis=-1) if self.ranges is None else _levels(vectors, self.ranges)
        return (found ^ np.uint8(_SIGN_BIT)).view(np.int8) if signed else found


def _levels(vectors: NDArray[np.float32], ranges: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the number of the step, 0 to 255, that each coordinate lies on; those outside are on the nearest one."""
    start, end = ranges
    with np.errstate(over="ignore"):
        steps = (end - start) / np.float32(_STEPS)
        steps[steps == 0] = 1
        return np.asarray(np.clip(np.floor((vectors - start) / steps), 0, _STEPS), np.uint8)


def _checked(ranges: ArrayLike, width: int) -> NDArray[np.float32]:
    """Return a caller's ranges as float32 [2, width]."""
    found = numbers_of("ranges", ranges)
    if found.shape != (2, width):
        raise UsageError(f"ranges have shape {list(found.shape)}; wanted [2, {width}]: lower ends, then upper ends")
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = found[1] - found[0]
    bad = ~(np.isfinite(lengths) & (lengths >= 0))
    if bad.any():
        place = int(bad.argmax())
        raise UsageError(
            f"ranges[:, {place}] are {found[0, place]} and {found[1, place]}; wanted finite numbers, the lower first"
        )
    return found


def as_tensors(vectors: NDArray[Any], whole: bool) -> Any:
    """Return vectors [n, k] as one tensor, or as a list of n tensors [k], on the CPU and of the same dtype."""
    try:
        import torch
    except ImportError:
        raise MissingPackageError(
            "tensors need torch; install it with pip install torch, or leave convert_to_tensor and convert_to_numpy out"
        ) from None
    tensor = torch.from_numpy(vectors)
    return tensor if whole else list(tensor)
