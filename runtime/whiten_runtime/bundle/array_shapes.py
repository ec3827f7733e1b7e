"""Read the names, types and shapes of the arrays in a safetensors file from its header, without the arrays."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from whiten_runtime.errors import BundleError

_PREFIX, _LONGEST = 8, 1 << 20
"""Bytes of the header's length, and of the longest header that is read."""


class Array(NamedTuple):
    """Describes an array: its type, as safetensors names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]


def array_shapes(path: Path) -> dict[str, Array]:
    """Return the arrays of a safetensors file by name.

    Raises:
        BundleError: the file cannot be read, or has no such header.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_PREFIX), "little")
            if not 2 <= length <= _LONGEST:
                raise ValueError(f"a header of {length} bytes")
            entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        described = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        found = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in described.items()}
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{path}: is damaged ({error}); copy the bundle again") from None
    return {name: Array(entry.dtype, entry.shape) for name, entry in found.items()}
