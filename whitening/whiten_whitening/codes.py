"""Code vectors in a few bytes, from the moments that a bundle stores, and search among the codes, with only numpy.

The levels have the least squared error for a normal coordinate (Max, "Quantizing for minimum distortion", IRE
Transactions on Information Theory, 1960, table I, with more digits): each is the mean of its cell, each threshold lies
half-way between two levels. A rotation makes coordinates of any variances nearly normal and of one variance, so that
none needs more bits than another (RaBitQ, SIGMOD 2024).
"""

import hashlib
import json
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from whiten_runtime.bundle.bundle import WHITENING_FILE, open_bundle
from whiten_runtime.bundle.manifest import SPACE_DIGITS, Manifest
from whiten_runtime.bundle.space import space_of, turning
from whiten_runtime.errors import BundleError, DataError, UsageError, check_file, described, path_of, whole_number
from whiten_runtime.files.replacing import replace_file
from whiten_runtime.hub import locate_bundle
from whiten_runtime.inference.vectors import Nearest
from whiten_whitening.maps import FLOAT32_ROUNDING, NULL_EIGENVALUE, WARNED_RATIO, StoredMap, read_map
from whiten_whitening.measures import checked_vectors, unit
from whiten_whitening.moments import Float64Array, Moments, spectrum

Bits = Literal[1, 2, 3, 4]
Bytes = NDArray[np.uint8]

_POSITIVE: dict[int, tuple[float, ...]] = {
    1: (0.7978845608028654,),
    2: (0.4527800346364921, 1.510417608499096),
    3: (0.24509417894422167, 0.7560052812058773, 1.3439092785049999, 2.1519457045369873),
    4: (
        *(0.1283950298511473, 0.38804829949029135, 0.6567591185324648, 0.942340456486963),
        *(1.2562311973471778, 1.6180463860218828, 2.0690172265313866, 2.7325895709951595),
    ),
}


def bits_of(size: int, axes: int) -> Bits:
    choices: tuple[tuple[Bits, float], ...] = ((4, 2 / 3), (3, 2 / 3), (2, 1 / 2))  # with the share of axes to keep
    return next((bits for bits, share in choices if 8 * size >= bits * share * axes), 1)


def unit_moments(stored: StoredMap) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return mean [k] and covariance [k, k] of a bundle's output y / |y|, and the covariance [d, k] of input and y.

    Moments of y / |y| are taken to be those of y / s, where s is the root mean square norm of y.
    """
    cross = stored.covariance @ stored.weight
    mean, covariance = stored(stored.corpus_mean), stored.weight.T @ cross
    norm = np.sqrt(np.trace(covariance) + mean @ mean)
    return mean / norm, covariance / norm**2, cross


def principal_axes(covariance: Float64Array, cross: Float64Array) -> Float64Array:
    """Return the axes along which unit vectors u vary, orthonormal [k, axes]; `cross` is about cov(x, u), [d, k].

    They are the eigenvectors of cov(u, x) cov(x, u), where x is u before the whitening: with pca and zca, those of
    cov(u). After a full whitening, whose cov(u) has no axes, they come in the order of the variance before it.
    """
    basis = spectrum(cross.T @ cross)[1]
    variances = np.einsum("ij,ij->j", basis, covariance @ basis)
    varying = variances > max(NULL_EIGENVALUE * variances.max(), FLOAT32_ROUNDING**2)
    if not varying.any():
        raise UsageError("all vectors have the same direction, so there are no axes; give different vectors")
    return basis[:, varying]


_ROUNDS = 4
"""Changes of signs, each followed by a Hadamard transform. One round leaves the last coordinates of a number that is no
power of two as they are; five and six gave scores within 0.2 of four, as another draw of the signs does."""


def rotation(dims: int) -> Float64Array:
    """Return a fixed orthogonal matrix [dims, dims], with the same bits on every machine: it needs no BLAS.

    Rounds of random signs and a Hadamard transform, of the first coordinates and of the last ones in turn, as many as
    the largest power of two; the signs are bits of SHAKE-256.
    """
    size = 1 << dims.bit_length() - 1
    matrix = np.eye(dims)
    for number in range(_ROUNDS):
        digest = hashlib.shake_256(f"0 {dims} {number}".encode()).digest(-(-dims // 8))
        matrix *= 1.0 - 2.0 * np.unpackbits(np.frombuffer(digest, np.uint8))[:dims]
        part = slice(size) if number % 2 == 0 else slice(dims - size, dims)
        matrix[:, part] = _hadamard(matrix[:, part])
    return matrix


def _hadamard(rows: Float64Array) -> Float64Array:
    """Return the orthonormal Walsh-Hadamard transform of each row; the rows' length is a power of two."""
    n, size = rows.shape
    step = 1
    while step < size:
        pairs = rows.reshape(n, size // (2 * step), 2, step)
        rows = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(n, size)
        step *= 2
    return np.asarray(rows / np.sqrt(size))


def levels(bits: Bits) -> Float64Array:
    """Return the levels for a normal coordinate of variance 1, ascending, [2 ** bits]."""
    positive = np.asarray(_POSITIVE[bits])
    return np.concatenate([-positive[::-1], positive])


def nearest_levels(coordinates: Float64Array, bits: Bits) -> Bytes:
    """Return the number of the level nearest to each coordinate; half-way between two, the upper one."""
    own = levels(bits)
    numbers = np.zeros(coordinates.shape, np.uint8)
    for threshold in (own[:-1] + own[1:]) / 2:
        numbers += coordinates >= threshold
    return numbers


def code_levels(coordinates: Float64Array, bits: Bits) -> Bytes:
    """Return the numbers of the levels of coordinates [n, d], divided by their root mean square.

    Zeros have the least positive level everywhere, which no other row has: with 2 bits and more its cell ends below 1,
    and with 1 bit the least coordinate of a row of positive ones becomes negative.
    """
    norms = np.linalg.norm(coordinates, axis=1, keepdims=True)
    scaled = coordinates * (np.sqrt(coordinates.shape[1]) / np.where(norms > 0, norms, 1))
    numbers = nearest_levels(scaled, bits)
    taken = np.flatnonzero((numbers == _zero(bits)).all(axis=1) & (norms[:, 0] > 0))
    numbers[taken, scaled[taken].argmin(axis=1)] -= 1
    return numbers


def decode_levels(packed: Bytes, bits: Bits, dims: int) -> NDArray[np.float32]:
    """Return the coordinates that packed levels stand for, float32 [n, dims]."""
    rows = unpack(packed, bits, dims)
    rows[(rows == np.float32(levels(bits)[_zero(bits)])).all(axis=1)] = 0
    return rows


def _zero(bits: Bits) -> int:
    return int(1 << bits - 1)


def pack(numbers: Bytes, bits: Bits, size: int) -> Bytes:
    """Pack numbers of `bits` bits, [n, d], into bytes, [n, size], the first in the highest bits; the rest is 0."""
    n, dims = numbers.shape
    flat = np.zeros((n, 8 * size), np.uint8)
    flat[:, : bits * dims] = (numbers[:, :, None] >> _shifts(bits) & np.uint8(1)).reshape(n, bits * dims)
    return np.packbits(flat, axis=1)


def unpack(packed: Bytes, bits: Bits, dims: int) -> NDArray[np.float32]:
    """Return the levels whose numbers were packed, float32 [n, dims]."""
    flat = np.unpackbits(packed, axis=1, count=bits * dims).reshape(len(packed), dims, bits)
    numbers = flat[:, :, 0]
    for bit in range(1, bits):
        numbers = numbers << np.uint8(1) | flat[:, :, bit]
    table: NDArray[np.float32] = levels(bits).astype(np.float32)
    return table[numbers]


def _shifts(bits: Bits) -> Bytes:
    return np.arange(bits - 1, -1, -1, dtype=np.uint8)


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


_ROWS_PER_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Coder:
    """Codes vectors in a few bytes, for search and comparison by cosine. Make one with `of`, `fit` or `load`.

    A vector is divided by its norm, centred, turned onto the leading principal axes, rotated by a fixed matrix, and
    divided by its norm again; each coordinate is then rounded to the nearest of 2, 4, 8 or 16 fixed levels. The
    rotation gives all coordinates the same variance, so that each has as many bits as it needs (RaBitQ, SIGMOD 2024).
    A vector of zeros has the code of no other, and the cosine 0 with all.

    The number of bytes decides the rest: 4 bits a coordinate, or else 3, if they leave room for two thirds of the axes;
    else 2 bits if they leave room for half; else 1 bit. Chosen on STS-B dev, STS12 and STS14:
    `benchmarks/codes/table.md`.

    Attributes:
        bytes: number of bytes of a code.
        bits: bits of a coordinate, 1, 2, 3 or 4.
        width: number of coordinates of a vector, k.
        space: id of the space of the vectors; None if it is not known.
        id: id of the coder: codes can be read by coders of the same id.
        former_id: id of the same coder by the former rule, whose codes can be read too; None where there is none.
        mean: mean of the unit vectors, float64 [k].
        weight: map of the centred unit vectors to coordinates, float64 [k, dims].
    """

    bytes: int
    bits: Bits
    width: int
    space: str | None
    id: str
    mean: Float64Array = field(repr=False)
    weight: Float64Array = field(repr=False)
    former_id: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bundle: str | Path, bytes: int | None = None) -> "Coder":
        """Make the coder of a bundle's vectors from the moments that the bundle stores.

        Bundles of the same space, fitted on vectors of the same precision, and the same number of bytes give the same
        id on every machine.

        Args:
            bundle: a bundle with a whitening: its directory, or a repository of the model hub.
            bytes: number of bytes of a code, k / 2 at most; None for k / 3, a twelfth of float32.

        Raises:
            BundleError: not a bundle, or one without moments.
            UsageError: so many bytes are not needed, or the bundle's similarity is none of directions.
        """
        opened = open_bundle(locate_bundle(bundle), verify_weights=False)
        manifest = opened.manifest
        _check_similarity(manifest)
        if manifest.whitening is None:
            raise BundleError(
                f"{opened.path}: has no whitening and stores no moments; use Coder.fit on a sample of its vectors, or "
                "give it one that only centres: whiten refit BUNDLE --corpus FILE --whitening centre --out OTHER"
            )
        space, vectors = space_of(manifest), turning(manifest.whitening.corpus, manifest.max_seq_length)
        coder = cls._made(bytes, *unit_moments(read_map(opened)), space, {"vectors": vectors})
        moments = {"moments": manifest.files[WHITENING_FILE].sha256}  # hung on their last bits
        former = _id(space, moments, coder.bytes)
        return replace(coder, former_id=former)

    @classmethod
    def fit(cls, vectors: ArrayLike, bytes: int | None = None, space: str | None = None) -> "Coder":
        """Make a coder from a sample of vectors, where a bundle stores no moments.

        Save it: a coder of another sample cannot read its codes.

        Args:
            vectors: sample, [n, k]; four or more for each of their dimensions, or there is a warning.
            bytes: number of bytes of a code, k / 2 at most; None for k / 3.
            space: id of the space of the vectors, as `Encoder.space` tells it.

        Raises:
            UsageError: an argument cannot be used as given, or all vectors have the same direction.
        """
        rows = checked_vectors(vectors, single=True)
        n, width = rows.shape
        if n < WARNED_RATIO * width:
            warnings.warn(
                f"{n} vectors of {width} dimensions give rough axes; give {WARNED_RATIO * width}", stacklevel=2
            )
        moments = Moments.empty(width)
        for start in range(0, n, _ROWS_PER_BLOCK):
            moments = moments.merge(Moments.of(_unit_rows(rows[start : start + _ROWS_PER_BLOCK])))
        covariance = moments.scatter / max(n - 1, 1)
        source = {"sample": hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()}
        return cls._made(bytes, moments.mean, covariance, covariance, space, source)

    @classmethod
    def _made(
        cls,
        bytes: int | None,
        mean: Float64Array,
        covariance: Float64Array,
        cross: Float64Array,
        space: str | None,
        source: dict[str, Any],
    ) -> "Coder":
        """Make a coder from the moments of unit vectors; for `cross`, see `principal_axes`."""
        axes = principal_axes(covariance, cross)
        count = axes.shape[1]
        why = f": 4 bits for each of the {count} axes along which the vectors vary"
        wanted = max(1, min(len(mean) // 3, -(-4 * count // 8))) if bytes is None else bytes
        size = whole_number("bytes", wanted, 1, None if bytes is None else -(-4 * count // 8), why)
        bits = bits_of(size, count)
        dims = min(8 * size // bits, count)
        weight = axes[:, :dims] @ rotation(dims)
        return cls(size, bits, len(mean), space, _id(space, source, size), mean, weight)

    @property
    def dims(self) -> int:
        """Return the number of coordinates of a code."""
        return int(self.weight.shape[1])

    def transform(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """Return the coordinates that codes approximate before they are rounded, without their norm.

        Args:
            vectors: vectors of the bundle, [n, k], normalised or not; or one, [k].

        Returns:
            float32 [n, dims].

        Raises:
            UsageError: not finite numbers [n, k], or of type int8, uint8 or bool.
        """
        rows = checked_vectors(vectors, self.width, single=True)
        coordinates = np.empty((len(rows), self.dims), np.float32)
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            coordinates[start : start + _ROWS_PER_BLOCK] = self._coordinates(rows[start : start + _ROWS_PER_BLOCK])
        return coordinates

    def encode_array(self, vectors: ArrayLike) -> Bytes:
        """Code vectors.

        Args:
            vectors: vectors of the bundle, [n, k], normalised or not; or one, [k].

        Returns:
            uint8 [n, bytes].

        Raises:
            UsageError: not finite numbers [n, k], or of type int8, uint8 or bool.
        """
        rows = checked_vectors(vectors, self.width, single=True)
        codes = np.empty((len(rows), self.bytes), np.uint8)
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            numbers = code_levels(self._coordinates(rows[start : start + _ROWS_PER_BLOCK]), self.bits)
            codes[start : start + len(numbers)] = pack(numbers, self.bits, self.bytes)
        return codes

    def encode(self, vectors: ArrayLike) -> Codes:
        """Code vectors, as `encode_array` does, and keep the id of this coder with them."""
        return self.codes(self.encode_array(vectors))

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
        return decode_levels(self._checked(codes), self.bits, self.dims)

    def search(self, queries: ArrayLike, codes: Codes | Bytes, k: int = 10) -> Nearest:
        """Find the codes nearest to vectors that are not coded, by the cosine with the decoded vectors.

        Codes are decoded in blocks, so that little memory is used, and compared by one product of matrices for each.

        Args:
            queries: vectors of the bundle, [q, k].
            codes: codes to search, `Codes` or uint8 [n, bytes].
            k: number of codes to find; fewer if there are fewer.

        Returns:
            Rows of the codes and float32 cosines, the nearest first.

        Raises:
            UsageError: codes of another coder, or arguments that cannot be used as given.
        """
        count, array, wanted = whole_number("k", k, 1), self._checked(codes), self.transform(queries)
        hits = Nearest.empty(len(wanted))
        for start in range(0, len(array), _ROWS_PER_BLOCK):
            block = decode_levels(array[start : start + _ROWS_PER_BLOCK], self.bits, self.dims)
            hits = hits.add(wanted, block, start, count)
        return replace(hits, cosines=hits.cosines.clip(-1, 1))

    def save(self, path: str | Path) -> None:
        """Write the coder as safetensors.

        Raises:
            WhitenError: the file cannot be written.
        """
        header = {name: getattr(self, name) for name in ("bytes", "bits", "space", "id")}
        write_tensors(path, {"mean": self.mean, "weight": self.weight}, {"kind": "coder", **header})

    @classmethod
    def load(cls, path: str | Path) -> "Coder":
        """Read a coder that `save` wrote.

        Raises:
            DataError: the file is missing, damaged, or holds no coder.
            UsageError: `path` is no path.
        """
        arrays, header = read_tensors(path, "coder")
        try:
            mean, weight, size, bits = arrays["mean"], arrays["weight"], header["bytes"], header["bits"]
            fits = bits in (1, 2, 3, 4) and weight.ndim == 2 and 0 < weight.shape[1] * bits <= 8 * size
            if not fits or mean.shape != weight.shape[:1]:
                raise UsageError(f"shapes {mean.shape} and {weight.shape} for {size} bytes of {bits} bits")
            if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in (mean, weight)):
                raise UsageError("numbers that are not finite float64")
            return cls(size, bits, len(mean), header["space"], str(header["id"]), mean, weight)
        except (KeyError, TypeError, UsageError) as error:
            raise DataError(f"{path}: its coder is damaged ({error}); make and save it again") from None

    def _coordinates(self, rows: NDArray[np.generic]) -> Float64Array:
        units = _unit_rows(rows)
        return np.where(units.any(axis=1, keepdims=True), units - self.mean, 0) @ self.weight

    def _checked(self, codes: Codes | Bytes) -> Bytes:
        if isinstance(codes, Codes):
            if codes.space != self.space:
                raise UsageError(
                    f"the codes are of vectors in space {codes.space}, but this coder is of space {self.space}; code "
                    "the vectors of this space"
                )
            if codes.coder not in (self.id, self.former_id):
                raise UsageError(
                    f"the codes were made by coder {codes.coder}, not by this one, {self.id}; load that coder, or code "
                    "the vectors again"
                )
        array = codes.array if isinstance(codes, Codes) else codes
        right = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape[1:] == (self.bytes,)
        if not right:
            raise UsageError(f"codes are {described(array)}; wanted uint8 [n, {self.bytes}]")
        return array


def _id(space: str | None, source: dict[str, Any], bytes: int) -> str:
    content = json.dumps({"format": FORMAT, "space": space, **source, "bytes": bytes}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:SPACE_DIGITS]


def _unit_rows(rows: NDArray[np.generic]) -> Float64Array:
    """Return rows divided by their norms, float64 [n, k]; rows of zeros stay."""
    exact = rows.astype(np.float64)
    largest = np.abs(exact).max(axis=1, initial=0, keepdims=True)
    return unit(exact / np.where(largest > 0, largest, 1))  # else squares may overflow


def _check_similarity(manifest: Manifest) -> None:
    similarity = manifest.similarity_fn_name
    if similarity not in (("cosine", "dot", "euclidean") if manifest.normalize else ("cosine",)):
        raise UsageError(
            f"the model of this bundle compares by {similarity}, which needs the norms of its vectors; codes keep "
            "their directions alone: store float32, or use Coder.fit if cosines will do"
        )
