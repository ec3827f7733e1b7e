"""Hold codes together with the id of the coder that made them; write and read codes and coders as safetensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from whiten_runtime.errors import DataError, UsageError, check_file, described, path_of
from whiten_runtime.files.replacing import replace_file
from whiten_whitening.codes.levels import Bytes

KEY = "whiten"
"""Key of the metadata in a safetensors file; its value is JSON."""

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of vectors, and the coder that made them.

    Attributes:
        array: the codes, uint8 [n, bytes].
        coder: id of the coder.
        space: id of the space of the vectors; None if it is not known.
    """

    array: Bytes
    coder: str
    space: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.array, np.ndarray) or self.array.ndim != 2 or self.array.dtype != np.uint8:
            raise UsageError(f"codes are {described(self.array)}; wanted uint8 [n, bytes]")

    def __len__(self) -> int:
        return len(self.array)

    def save(self, path: str | Path) -> None:
        """Write the codes as safetensors.

        Raises:
            WhitenError: the file cannot be written.
        """
        write_tensors(path, {"codes": self.array}, {"kind": "codes", "coder": self.coder, "space": self.space})

    @classmethod
    def load(cls, path: str | Path) -> "Codes":
        """Read codes that `save` wrote.

        Raises:
            DataError: the file is missing, damaged, or holds no codes.
        """
        arrays, header = read_tensors(path, "codes")
        try:
            return cls(arrays["codes"], str(header["coder"]), header["space"])
        except (KeyError, UsageError) as error:
            raise DataError(f"{path}: its codes are damaged ({error}); encode the vectors again") from None


def write_tensors(path: str | Path, arrays: dict[str, NDArray[Any]], header: dict[str, object]) -> None:
    content = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {KEY: json.dumps({"format": FORMAT, **header})},
    )
    replace_file(Path(path), content)


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    place = path_of("path", path)
    check_file(place, f"wanted a saved {kind}", DataError)
    try:
        with safe_open(place, "numpy") as file:
            header = json.loads((file.metadata() or {})[KEY])
            stated, version = header["kind"], header["format"]
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: holds no {kind} that whiten has saved ({' '.join(str(error).split())})") from None
    if stated != kind:
        raise DataError(f"{path}: holds {stated!r}; wanted a saved {kind}")
    if version != FORMAT:
        raise DataError(
            f"{path}: format {version!r} of {kind}, but this version of whiten reads {FORMAT}; upgrade whiten"
        )
    return arrays, header
