"""Code the vectors of a bundle in a few bytes, without a calibration set."""

import hashlib
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import WHITENING_FILE, open_bundle
from whiten_runtime.bundle.manifest import SPACE_DIGITS
from whiten_runtime.bundle.space import space_of
from whiten_runtime.checks import described, path_of, whole_number
from whiten_runtime.errors import BundleError, DataError, UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.nearest import Nearest
from whiten_whitening.codes.axes import Axes, beta_for, principal_axes, unit_moments
from whiten_whitening.codes.coded import FORMAT, Codes, read_tensors, write_tensors
from whiten_whitening.codes.inputs import check_similarity, checked_beta, checked_vectors, unit_rows
from whiten_whitening.codes.layout import Layout
from whiten_whitening.codes.levels import Bits, check_bits, nearest_levels
from whiten_whitening.codes.packing import Bytes, code_bytes, pack, pack_int8
from whiten_whitening.codes.search import find_nearest
from whiten_whitening.maps import WARNED_RATIO
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.stored import read_map

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Coder:
    """Codes vectors in a few bytes, for search and comparison by cosine. Make one with `of`, `fit` or `load`.

    A vector is divided by its norm, centred, turned onto the leading principal axes and scaled to variance 1; each
    coordinate is then rounded to the nearest of 2, 4 or 16 fixed levels, those of the least squared error for a normal
    coordinate (Max 1960). With 8 bits, the scaled coordinates are int8 with one scale for each vector, which follows
    them in four bytes.

    Attributes:
        bits: bits of a coordinate, 1, 2, 4 or 8.
        beta: exponent β: a decoded coordinate has its standard deviation to the power of 1 - β. 0 keeps the cosines of
            the centred vectors, 1 whitens them.
        width: number of coordinates of a vector, k.
        space: id of the space of the vectors; None if it is not known.
        id: id of the coder: codes can be read by coders of the same id.
        axes: affine map of unit vectors; None with 8 bits for all coordinates as they are.
    """

    bits: Bits
    beta: float
    width: int
    space: str | None
    id: str
    axes: Axes | None = field(repr=False)

    @classmethod
    def of(cls, bundle: str | Path, bits: int = 4, dims: int | None = None, beta: float | None = None) -> "Coder":
        """Make the coder of a bundle's vectors from the moments that the bundle stores.

        The same bundle and arguments give the same id on every machine.

        Args:
            bundle: a bundle with a whitening: its directory, or a repository of the model hub.
            bits: bits of a coordinate: 1, 2, 4 or 8.
            dims: number of leading axes to keep; None for all. With 8 bits, None keeps the coordinates as they are,
                which needs no moments.
            beta: exponent from 0 to 1; None for 0 where the top layer was fine-tuned for similarity, and for 0.5
                otherwise and with 1 bit. 0 keeps the cosines of the bundle's own vectors.

        Raises:
            BundleError: not a bundle, or one without moments.
            UsageError: an argument cannot be used as given, or the bundle's similarity is none of directions.
        """
        opened = open_bundle(locate_bundle(bundle), verify_weights=False)
        manifest, known = opened.manifest, check_bits(bits)
        check_similarity(manifest)
        chosen = beta_for(manifest, known) if beta is None else checked_beta(beta)
        space, width = space_of(manifest), manifest.dimension
        if known == 8 and dims is None:
            return cls._identity(width, space)
        if manifest.whitening is None:
            raise BundleError(
                f"{opened.path}: has no whitening and stores no moments; use Coder.fit on a sample of its vectors, or "
                "8 bits and all dims, or give it one that only centres: whiten refit BUNDLE --corpus FILE "
                "--whitening pca --beta 0 --out OTHER"
            )
        moments = unit_moments(read_map(opened.path, manifest))
        axes = principal_axes(*moments, dims, chosen)
        source = {"space": space, "moments": manifest.files[WHITENING_FILE].sha256}
        return cls(known, chosen, width, space, _id(source, known, chosen, len(axes.scale)), axes)

    @classmethod
    def fit(
        cls, vectors: ArrayLike, bits: int = 4, dims: int | None = None, beta: float = 0.0, space: str | None = None
    ) -> "Coder":
        """Make a coder from a sample of vectors, where a bundle stores no moments.

        Save it: a coder of another sample cannot read its codes.

        Args:
            vectors: sample, [n, k]; four or more for each of their dimensions, or there is a warning.
            bits: bits of a coordinate: 1, 2, 4 or 8.
            dims: number of leading axes to keep; None for all. With 8 bits, None keeps the coordinates as they are.
            beta: exponent from 0 to 1; 0.5 is better for layers that were not fine-tuned for similarity.
            space: id of the space of the vectors, as `Encoder.space` tells it.

        Raises:
            UsageError: an argument cannot be used as given, or there are too few vectors.
        """
        known, chosen, rows = check_bits(bits), checked_beta(beta), checked_vectors(vectors)
        n, width = rows.shape
        if known == 8 and dims is None:
            return cls._identity(width, space)
        if n <= (kept := width if dims is None else whole_number("dims", dims, 1)):
            raise UsageError(f"{n} vectors do not tell {kept} axes; give more than {kept}, or fewer dims")
        if n < WARNED_RATIO * width:
            warnings.warn(
                f"{n} vectors of {width} dimensions give rough axes; give {WARNED_RATIO * width}", stacklevel=2
            )
        moments = Moments.empty(width)
        for start in range(0, n, _ROWS_AT_ONCE):
            moments = moments.merge(Moments.of(unit_rows(rows[start : start + _ROWS_AT_ONCE])))
        axes = principal_axes(moments.mean, moments.covariance, moments.covariance, dims, chosen)
        content = hashlib.sha256(moments.mean.tobytes() + moments.scatter.tobytes()).hexdigest()
        return cls(known, chosen, width, space, _id({"space": space, "sample": content}, known, chosen, kept), axes)

    @classmethod
    def _identity(cls, width: int, space: str | None) -> "Coder":
        return cls(8, 0.0, width, space, _id({"space": space, "moments": None}, 8, 0.0, width), None)

    @property
    def dims(self) -> int:
        """Return the number of coordinates of a code."""
        return self.width if self.axes is None else len(self.axes.scale)

    @property
    def bytes(self) -> int:
        """Return the number of bytes of a code."""
        return code_bytes(self.dims, self.bits)

    @property
    def layout(self) -> Layout:
        """Return the layout of the codes."""
        scaled = self.axes is not None and self.bits != 8
        scale = cast(Axes, self.axes).scale if scaled else np.ones(self.dims)
        return Layout(self.bits, self.dims, scale.astype(np.float32))

    def transform(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """Return the coordinates that codes approximate, before they are rounded: float32 [n, dims].

        Args:
            vectors: vectors of the bundle, [n, k], normalised or not; or one, [k].

        Raises:
            UsageError: not finite numbers [n, k], or of type int8, uint8 or bool.
        """
        rows = checked_vectors(vectors, self.width)
        found = np.empty((len(rows), self.dims), np.float32)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            found[start : start + _ROWS_AT_ONCE] = self._scaled(rows[start : start + _ROWS_AT_ONCE])
        return found

    def encode_codes(self, vectors: ArrayLike) -> Bytes:
        """Code vectors.

        Args:
            vectors: vectors of the bundle, [n, k], normalised or not; or one, [k].

        Returns:
            uint8 [n, bytes].

        Raises:
            UsageError: not finite numbers [n, k], or of type int8, uint8 or bool.
        """
        rows = checked_vectors(vectors, self.width)
        codes = np.empty((len(rows), self.bytes), np.uint8)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            if self.bits == 8:
                codes[start : start + len(part)] = pack_int8(self._scaled(part))
            else:
                codes[start : start + len(part)] = pack(nearest_levels(self._normal(part), self.bits), self.bits)
        return codes

    def encode(self, vectors: ArrayLike) -> Codes:
        """Code vectors, as `encode_codes` does, and keep the id of this coder with them."""
        return self.codes(self.encode_codes(vectors))

    def codes(self, array: Bytes) -> Codes:
        """Mark an array of codes, uint8 [n, bytes], as made by this coder.

        Raises:
            UsageError: not uint8 [n, bytes].
        """
        return Codes(self._checked(array), self.id, self.space)

    def decode(self, codes: Codes | Bytes) -> NDArray[np.float32]:
        """Return the coordinates that codes stand for, float32 [n, dims]; cosines are about those of the vectors.

        Raises:
            UsageError: codes of another coder, or not uint8 [n, bytes].
        """
        return self.layout.decode(self._checked(codes))

    def search(self, queries: ArrayLike, codes: Codes | Bytes, k: int = 10, candidates: int | None = None) -> Nearest:
        """Find the codes nearest to vectors that are not coded, by the cosine with the decoded vectors.

        Codes are read in blocks, so that little memory is used. Cosines are computed in float32, those of the nearest
        in float64. Norms of decoded vectors are computed for each call, or for `Codes` the first time.

        Args:
            queries: vectors of the bundle, [q, k].
            codes: codes to search, `Codes` or uint8 [n, bytes].
            k: number of codes to find; fewer if there are fewer.
            candidates: number of codes to compare, those with the most signs in common with the query; None for all.
                Much faster for few queries; signs of `Codes` are taken out the first time.

        Returns:
            Rows of the codes and cosines, the nearest first; among equals, the lower row first.

        Raises:
            UsageError: codes of another coder, or arguments that cannot be used as given.
        """
        count = whole_number("k", k, 1)
        if candidates is not None:
            whole_number("candidates", candidates, count, why=", no less than k")
        array = self._checked(codes)
        kept = codes if isinstance(codes, Codes) else None
        return find_nearest(self.layout, self.transform(queries), array, count, candidates, kept)

    def save(self, path: str | Path) -> None:
        """Write the coder as safetensors.

        Raises:
            WhitenError: the file cannot be written.
        """
        names = () if self.axes is None else ("mean", "weight", "scale")
        arrays = {name: getattr(self.axes, name) for name in names} or {"none": np.zeros(0)}
        header = {"kind": "coder", **{name: getattr(self, name) for name in ("bits", "beta", "width", "space", "id")}}
        write_tensors(Path(path), arrays, header)

    @classmethod
    def load(cls, path: str | Path) -> "Coder":
        """Read a coder that `save` wrote.

        Raises:
            DataError: the file is missing, damaged, or holds no coder.
            UsageError: `path` is no path.
        """
        arrays, header = read_tensors(path_of("path", path), "coder")
        try:
            bits, width, beta = check_bits(header["bits"]), whole_number("width", header["width"], 1), header["beta"]
            axes = None if "none" in arrays else Axes(*(arrays[name] for name in ("mean", "weight", "scale")))
            _check_axes(axes, bits, width)
            return cls(bits, checked_beta(beta), width, header["space"], str(header["id"]), axes)
        except (KeyError, UsageError) as error:
            raise DataError(f"{path}: its coder is damaged ({error}); make and save it again") from None

    def _normal(self, rows: NDArray[np.generic]) -> Float64Array:
        """Return coordinates of variance 1, float64 [n, dims]."""
        axes = cast(Axes, self.axes)
        return (unit_rows(rows) - axes.mean) @ axes.weight

    def _scaled(self, rows: NDArray[np.generic]) -> Float64Array:
        return unit_rows(rows) if self.axes is None else self._normal(rows) * self.axes.scale

    def _checked(self, codes: Codes | Bytes) -> Bytes:
        if isinstance(codes, Codes):
            if codes.space != self.space:
                raise UsageError(
                    f"the codes are of vectors in space {codes.space}, but this coder is of space {self.space}; code "
                    "the vectors of this space"
                )
            if codes.coder != self.id:
                raise UsageError(
                    f"the codes were made by coder {codes.coder}, not by this one, {self.id}; load that coder, or code "
                    "the vectors again"
                )
        array = codes.array if isinstance(codes, Codes) else codes
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != np.uint8
            or array.ndim != 2
            or array.shape[1] != self.bytes
        ):
            raise UsageError(f"codes are {described(array)}; wanted uint8 [n, {self.bytes}]")
        return array


def _check_axes(axes: Axes | None, bits: Bits, width: int) -> None:
    if axes is None:
        if bits != 8:
            raise UsageError(f"{bits} bits without axes")
        return
    arrays = (axes.mean, axes.weight, axes.scale)
    dims = axes.scale.size
    if [array.shape for array in arrays] != [(width,), (width, dims), (dims,)] or not dims:
        raise UsageError(f"shapes {[array.shape for array in arrays]} for {width} coordinates")
    if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays):
        raise UsageError("numbers that are not finite float64")


def _id(source: dict[str, Any], bits: Bits, beta: float, dims: int) -> str:
    """Return the id of a coder: hexadecimal digits of a SHA-256 over what it is made from."""
    content = {"format": FORMAT, **source, "bits": bits, "beta": beta, "dims": dims}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:SPACE_DIGITS]
