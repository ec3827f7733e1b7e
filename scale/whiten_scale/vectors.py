"""Compute what is stored of each text: a vector as float32, float16 or int8, or its code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import import_parquet
from whiten_runtime.files.vector_metadata import KEY, SPACE_KEY, VectorMetadata
from whiten_runtime.files.write_vectors import as_stored
from whiten_whitening.codes.coder import Coder

StoredType = Literal["float32", "float16", "int8", "codes"]

CODER_KEY = "whiten.coder"
"""Key of the id of the coder in the schema of a Parquet file."""


class VectorChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is stored of each text.

    Attributes:
        type: type of the numbers, or "codes".
        normalize: divide each vector by its L2 norm.
        truncate_dim: number of leading coordinates to keep; None for all.
        prompt_name: name of the bundle's prompt; None for its default one.
        prompt: the prompt itself.
        bits: bits of a coordinate of codes.
        dims: number of axes of codes; None for all.
    """

    type: StoredType = "float32"
    normalize: bool = False
    truncate_dim: int | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    bits: int = 4
    dims: int | None = None

    def check(self) -> None:
        """Check what needs no bundle.

        Raises:
            UsageError: an option is for another type.
        """
        if self.type not in get_args(StoredType):
            raise UsageError(f"type is {self.type!r}; wanted {', '.join(get_args(StoredType))}")
        if self.type == "codes" and (self.normalize or self.truncate_dim):
            raise UsageError(
                "codes are of whole vectors, whatever their norm; leave out --normalize and --truncate-dim"
            )
        if self.type != "codes" and (self.dims is not None or self.bits != 4):
            raise UsageError(f"--bits and --dims are for --type codes, not {self.type}; leave them out")

    def shown(self) -> dict[str, str]:
        """Return the options by name, as they are written."""
        return {name: "default" if value is None else str(value) for name, value in msgspec.to_builtins(self).items()}


class Vectors:
    """Computes what is stored of texts with one thread.

    Args:
        bundle: the bundle.
        choice: what is stored.

    Raises:
        WhitenError: the bundle cannot be opened, or gives no such vectors.
    """

    def __init__(self, bundle: Path, choice: VectorChoice) -> None:
        choice.check()
        self.encoder = Encoder(bundle, threads=1)
        manifest = self.encoder.manifest
        self._choice = choice
        self._prompt = self.encoder._embedder.prompts.resolve(choice.prompt_name, choice.prompt)
        named = choice.prompt_name or (self.encoder.default_prompt_name if choice.prompt is None else None)
        self._precision: Literal["float32", "int8"] = "int8" if choice.type == "int8" else "float32"
        self._metadata = VectorMetadata.of(manifest, choice.normalize, choice.truncate_dim, named, self._precision)
        self._coder = Coder.of(bundle, choice.bits, choice.dims) if choice.type == "codes" else None
        if choice.type == "float16" and self._metadata.dtype != np.dtype("<f4"):
            raise UsageError("this bundle gives int8 vectors; take --type int8")
        self.window = self.encoder._engine.schedule.window
        self.of(["A text."])  # a type that the bundle cannot give is refused before the work

    def close(self) -> None:
        """Free the model."""
        self.encoder.close()

    def of(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return what is stored of texts, [n, width].

        Raises:
            BundleError: a vector is not finite.
            DataError: a vector is too long for float16.
        """
        choice = self._choice
        rows = self.encoder.encode(
            list(texts),
            prompt=self._prompt,
            normalize_embeddings=choice.normalize,
            truncate_dim=choice.truncate_dim,
            precision=self._precision,
        )
        if self._coder is not None:
            return self._coder.encode_codes(rows)
        if choice.type != "float16":
            return np.ascontiguousarray(as_stored(rows, self._metadata))
        with np.errstate(over="ignore"):
            halves = rows.astype(np.float16)
        if not np.isfinite(halves).all():
            raise DataError(
                "a coordinate is beyond 65,504, the largest of float16; take --type float32, or --normalize"
            )
        return halves

    @property
    def column(self) -> str:
        """Return the name of the column: that of `whiten embed`, or "code"."""
        return "embedding" if self._coder is None else "code"

    @property
    def metadata(self) -> dict[str, bytes]:
        """Return what the schema of a file says of its vectors, as `whiten embed` writes it."""
        space = {SPACE_KEY: self._metadata.space.encode()}
        return space | (
            {KEY: self._metadata.to_json()} if self._coder is None else {CODER_KEY: self._coder.id.encode()}
        )

    def arrow_type(self) -> Any:
        """Return pyarrow's type of the column."""
        pyarrow, _ = import_parquet()
        if self._coder is not None:
            return pyarrow.list_(pyarrow.uint8(), self._coder.bytes)
        number = np.dtype(np.float16) if self._choice.type == "float16" else self._metadata.dtype
        return pyarrow.list_(pyarrow.from_numpy_dtype(number), self._metadata.columns)
