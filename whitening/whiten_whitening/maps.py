"""Fit whitenings: affine maps that make a covariance the identity, or nearly so, with only numpy.

With row vectors x̂ = (x - μ) W, Σ = cov(x) = U Λ Uᵀ, σ = sqrt(diag Σ), P = D⁻¹ Σ D⁻¹ = G Θ Gᵀ with D = diag(σ). The
five methods are those of Kessy, Lewin & Strimmer, "Optimal whitening and decorrelation" (2018), section 3; columns cut
to k and exponents below 1 follow Su et al., arXiv 2103.15316, section 3.2.
"""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from whiten_runtime.bundle.bundle import WHITENING_FILE, Bundle
from whiten_runtime.bundle.manifest import NESTED_METHODS
from whiten_runtime.errors import BundleError, UsageError, whole_number
from whiten_runtime.files.rows import number_of
from whiten_whitening.moments import (
    Float64Array,
    Moments,
    ledoit_wolf,
    oas,
    powers,
    scaled_spectrum,
    spectrum,
    triangular,
)

Shrinkage = str | float

ESTIMATORS = ("none", "ledoit-wolf", "oas")


def check_shrinkage(shrinkage: Shrinkage) -> None:
    """Raise UsageError unless it is one of `ESTIMATORS` or a number from 0 to 1."""
    if not (isinstance(shrinkage, str) and shrinkage in ESTIMATORS) and not _is_share(shrinkage):
        raise UsageError(f"shrinkage is {shrinkage!r}; wanted {', '.join(ESTIMATORS)}, or a number from 0 to 1")


def _is_share(value: object) -> bool:
    """Return whether a value is a real number from 0 to 1, Python's or numpy's."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


def parse_shrinkage(text: str) -> Shrinkage:
    number = number_of(text)
    value: Shrinkage = text if number is None else number
    check_shrinkage(value)
    return value


def check_for_sif(shrinkage: Shrinkage) -> None:
    """Raise UsageError for an estimator that needs more than is known after common components are removed."""
    if shrinkage == "ledoit-wolf":
        raise UsageError(
            "shrinkage 'ledoit-wolf' needs the vectors' fourth moment, which is not known once common components are "
            "taken away (sif); use oas, or a number"
        )


def shrinkage_weight(moments: Moments, shrinkage: Shrinkage) -> float:
    """Return α, from 0 to 1."""
    if not isinstance(shrinkage, str):
        return float(shrinkage)
    if not np.isfinite(moments.fourth):
        check_for_sif(shrinkage)
    return {"none": lambda _: 0.0, "ledoit-wolf": ledoit_wolf, "oas": oas}[shrinkage](moments)


Method = Literal["pca", "zca", "cholesky", "zca-cor", "pca-cor"]

EIGENVALUE_FLOOR = 1e-6
"""Smallest eigenvalue to divide by, relative to the largest: smaller ones are raised to it."""

NULL_EIGENVALUE = 1e-10
"""Relative eigenvalue below which a direction holds only the rounding of float32 vectors, and is mapped to 0. Every
layer that ends in a LayerNorm has such a direction: pooling keeps the sum of (h - bias) / scale at 0.
"""

FLOAT32_ROUNDING, FLOAT64_ROUNDING = 2.0**-23, 2.0**-50
"""Standard deviation, relative to the mean, up to which a column of numbers of that precision counts as constant."""

_NULL_CORRELATION = 2.0**-50
"""Eigenvalue of a correlation matrix, for each dimension, below which a direction holds only float64's rounding."""

ADVISED_RATIO, WARNED_RATIO = 10, 4
"""Sentences per dimension that are advised, and below which a warning is due."""


@dataclass(frozen=True)
class WhiteningSpec:
    """Whitening to fit.

    Attributes:
        method: "pca" W = U Λ^(-β/2); "zca" U Λ^(-β/2) Uᵀ; "cholesky" lower triangular with W Wᵀ = Σ^(-β); "pca-cor" D⁻¹
            G Θ^(-β/2); "zca-cor" D⁻¹ G Θ^(-β/2) Gᵀ. With β = 1, all of them have Wᵀ Σ W = I.
        dimension: number of leading columns to keep, k; None for all d. Only where columns are nested: pca and pca-cor.
        beta: β from 0 to 1. 1 whitens; 0 centres and rotates, and the -cor methods also divide by σ.
        shrinkage: shrinkage of the covariance towards a multiple of the identity, before all else: "none",
            "ledoit-wolf", "oas", or a number α from 0 to 1.
        common_components: number of directions of the largest variance to remove ("all-but-the-top", Mu & Viswanath,
            ICLR 2018); only for pca.

    Raises:
        UsageError: no such method, a number out of range, or a dimension for a method whose columns are not nested.
    """

    method: Method = "pca"
    dimension: int | None = None
    beta: float = 1.0
    shrinkage: Shrinkage = "none"
    common_components: int = 0

    @property
    def estimator(self) -> str:
        """Return what determines the weight of the shrinkage: "none", "ledoit-wolf", "oas" or "fixed"."""
        if isinstance(self.shrinkage, str):
            return self.shrinkage
        return "fixed" if self.shrinkage else "none"

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise UsageError(f"method is {self.method!r}; wanted {', '.join(get_args(Method))}")
        if not _is_share(self.beta):
            raise UsageError(f"beta is {self.beta!r}; wanted a number from 0 (centred only) to 1 (whitened)")
        check_shrinkage(self.shrinkage)
        for name, value in (("beta", self.beta), ("shrinkage", self.shrinkage)):
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())
        whole_number("common-components", self.common_components, 0)
        if self.common_components and self.method != "pca":
            raise UsageError(f"common components can be removed with pca, not with {self.method}; leave them out")
        if self.dimension is not None:
            whole_number("dim", self.dimension, 1)


@dataclass(frozen=True)
class AffineMap:
    mean: Float64Array  # mean that is subtracted, [d]
    weight: Float64Array  # W, [d, k]

    def __call__(self, rows: Float64Array) -> Float64Array:
        """Return (x - mean) W for each row x, [n, d] to [n, k]."""
        return np.asarray((rows - self.mean) @ self.weight)


@dataclass(frozen=True)
class WhiteningMap(AffineMap):
    spec: WhiteningSpec | None  # whitening that W was computed by; None if the map only removes common components
    alpha: float  # weight of the shrinkage that was applied
    # mean of the vectors, [d]. If common components are removed, this and the following attributes are of the vectors
    # without them
    corpus_mean: Float64Array
    covariance: Float64Array  # covariance of the vectors, before shrinkage, [d, d]
    eigenvalues: Float64Array  # all d eigenvalues of the covariance, descending
    rank: int  # number of eigenvalues above the floor
    n_samples: int  # number of vectors that the map was fitted on
    common_components: int = 0  # number of directions that are removed before whitening


def whitened(vectors: Float64Array, fitted: AffineMap | None) -> Float64Array:
    """Return vectors under a map, [n, d] to [n, k]; the vectors themselves without one."""
    return vectors if fitted is None else fitted(vectors)


def check_dimension(spec: WhiteningSpec, width: int) -> None:
    """Raise UsageError if fewer than all of `width` dimensions are to be kept of a map whose columns have no order."""
    dimension = spec.dimension or width
    if dimension < width and spec.method not in NESTED_METHODS:
        raise UsageError(
            f"dim {dimension} cannot be kept of {spec.method}: its columns are not ordered by variance, so the first "
            "ones are no whitening to fewer dimensions; use pca or pca-cor, or leave dim out"
        )


def check_sample_count(n: int, width: int, spec: WhiteningSpec, what: str = "sentences") -> str | None:
    """Check whether n vectors are enough to whiten `width` dimensions; return a warning, or None.

    n vectors have a covariance of rank n - 1 at most. If it is whitened in full, every pair of them has cosine -1 / (n
    - 1), whatever they are. Without shrinkage, this holds for n up to d + 1.
    """
    check_dimension(spec, width)
    dimension = spec.dimension or width
    if not spec.beta and not spec.common_components and dimension == width:
        return None
    if n < 2:
        raise UsageError(f"{n} {what} have no covariance; give at least 2")
    if n <= width + 1 and n < WARNED_RATIO * dimension and spec.beta > 0:
        if spec.shrinkage in ("none", 0):
            fewer = f", keep --dim {n // WARNED_RATIO} or fewer dimensions" if n >= WARNED_RATIO else ""
            raise UsageError(
                f"{n} {what} cannot whiten {width} dimensions: the covariance has rank {max(n - 1, 0)} at most, and "
                f"all pairs would come out equally similar; give more than {width + 1} {what} "
                f"({ADVISED_RATIO * width} are advised){fewer}, or shrink (--shrinkage oas)"
            )
        return f"{n} {what} for {width} dimensions: what they do not show is guessed by shrinkage; give more"
    if n < WARNED_RATIO * width:
        return f"{n} {what} for {width} dimensions give a rough whitening; {ADVISED_RATIO * width} or more are advised"
    return None


def fit_map(
    moments: Moments,
    spec: WhiteningSpec | None = None,
    what: str = "sentences",
    exact: bool = False,
) -> WhiteningMap:
    """Fit a whitening. Columns of pca and pca-cor come by descending eigenvalue, their largest entry positive.

    Args:
        moments: moments of the vectors.
        spec: whitening to fit; None for pca.
        what: what the vectors are of, for messages.
        exact: whether the vectors have float64's precision. Directions are then whitened however small they are, and
            however far apart the scales of columns; otherwise `EIGENVALUE_FLOOR` and `NULL_EIGENVALUE` apply.
    """
    spec = spec or WhiteningSpec()
    width = len(moments.mean)
    left = width - spec.common_components
    dimension = spec.dimension or left
    if not 0 < dimension <= left:
        removed = f", of which {spec.common_components} are removed" if spec.common_components else ""
        raise UsageError(f"dim is {dimension}, but the vectors have {width} dimensions{removed}; wanted 1 to {left}")
    check_dimension(spec, width)
    if moments.n < 2:
        raise UsageError(f"{moments.n} {what} have no covariance; give at least 2")
    covariance = moments.covariance
    noise = np.square((FLOAT64_ROUNDING if exact else FLOAT32_ROUNDING) * moments.mean)
    floor, null = (0.0, _NULL_CORRELATION * width) if exact else (EIGENVALUE_FLOOR, NULL_EIGENVALUE)
    eigenvalues, basis = scaled_spectrum(covariance, noise, null) if exact else spectrum(covariance)
    if not (np.diag(covariance) > noise).any():
        hint = "" if what == "vectors" else ", and not cls pooling where the first token never changes"
        raise UsageError(
            f"all {moments.n} {what} have the same vector, so there is nothing to whiten; give different {what}{hint}"
        )
    alpha = shrinkage_weight(moments, spec.shrinkage)
    if spec.method in ("pca-cor", "zca-cor"):
        shrunk = (1 - alpha) * covariance + alpha * np.trace(covariance) / width * np.eye(width)
        variances = np.diag(shrunk)
        varying = variances > (noise if exact else np.maximum(noise, NULL_EIGENVALUE * variances.max()))
        inverse = np.where(varying, 1 / np.sqrt(np.where(varying, variances, 1)), 0)
        theta, basis = spectrum(inverse[:, None] * shrunk * inverse)
        root = inverse[:, None] * (basis * powers(theta, spec.beta, floor, null))
    else:
        shrunk_values = (1 - alpha) * eigenvalues + alpha * eigenvalues.mean()
        root = basis * powers(shrunk_values, spec.beta, floor, 0.0 if exact else null)
    match spec.method:
        case "pca" | "pca-cor":
            pass
        case "zca" | "zca-cor":
            root = root @ basis.T
        case "cholesky":
            root = triangular(root)
        case unknown:
            assert_never(unknown)
    return WhiteningMap(
        mean=moments.mean,
        weight=np.ascontiguousarray(root[:, spec.common_components :][:, :dimension]),
        spec=spec,
        alpha=alpha,
        corpus_mean=moments.mean,
        covariance=covariance,
        eigenvalues=eigenvalues,
        rank=int((eigenvalues > floor * eigenvalues[0]).sum()),
        n_samples=moments.n,
        common_components=spec.common_components,
    )


def fit_sif(moments: Moments, spec: WhiteningSpec | None) -> WhiteningMap:
    """Remove the direction that all sentences share (Arora et al., ICLR 2017, algorithm 1), then whiten or not.

    Both are linear: (x (I - uuᵀ) - m) W = (x - m) (I - uuᵀ) W, where m is the mean of the remaining vectors, which has
    no component along u.
    """
    basis = moments.common_components(1)
    keep = np.eye(len(basis)) - basis @ basis.T
    fitted = fit_map(moments.without_components(basis), spec)
    if spec is not None:
        return replace(fitted, weight=keep @ fitted.weight, common_components=1 + fitted.common_components)
    return replace(fitted, mean=np.zeros(len(basis)), weight=keep, spec=None, common_components=1)


@dataclass(frozen=True)
class StoredMap(AffineMap):
    corpus_mean: Float64Array  # mean of the corpus's vectors before whitening, [d]
    covariance: Float64Array  # covariance of the corpus's vectors before whitening, [d, d]


def read_map(bundle: Bundle) -> StoredMap:
    root, manifest = bundle.path, bundle.manifest
    if manifest.whitening is None or WHITENING_FILE not in manifest.files:
        raise BundleError(f"{root}: has no whitening; whiten refit gives it one")
    try:
        arrays: dict[str, NDArray[np.float64]] = load(bundle.read(WHITENING_FILE))
        tensors = tuple(arrays[name] for name in ("mean", "W", "corpus_mean", "covariance"))
    except (SafetensorError, KeyError) as error:
        raise BundleError(f"{root / WHITENING_FILE}: is damaged or too old ({error}); export the model again") from None
    d, k = manifest.unwhitened_width, manifest.dimension
    shapes = [array.shape for array in tensors]
    if shapes != [(d,), (d, k), (d,), (d, d)] or not all(np.isfinite(array).all() for array in tensors):
        raise BundleError(
            f"{root / WHITENING_FILE}: holds shapes {shapes} or no numbers, unlike its manifest; export again"
        )
    return StoredMap(*tensors)
