"""Whiten vectors with `Whitening`, an estimator in the style of scikit-learn, streamed and merged, with only numpy."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from whiten_runtime.errors import DataError, UsageError, one_of, path_of
from whiten_runtime.files.replacing import replace_file
from whiten_whitening.maps import (
    Method,
    Shrinkage,
    WhiteningMap,
    WhiteningSpec,
    check_sample_count,
    fit_map,
    parse_shrinkage,
)
from whiten_whitening.moments import Float64Array, Moments

_ROWS_PER_BLOCK = 4096

_OFF = 0.01
"""Largest difference from 1 of a whitened column's variance without a warning."""

_SINGLE = "float32"
"""Key in saved files of estimators that have seen vectors of less than float64's precision."""


class NotFittedError(UsageError, AttributeError):
    """Raised when an attribute or method needs a fitted estimator."""


class Whitening:
    """Whitens vectors: y = (x - mean_) weight_. Its state is float64 moments, whose size does not depend on n.

    Fitting on parts and merging equals fitting on all vectors, to float64 rounding, and gives the same bits for the
    same parts in the same order. Works in scikit-learn's pipelines and with its `clone`.

    Warns where there are fewer than four vectors per dimension.

    Args:
        method: "pca", "zca", "cholesky", "pca-cor" or "zca-cor"; see `WhiteningSpec`.
        n_components: number of leading columns to keep (pca and pca-cor); None for all.
        beta: exponent; 1 whitens, 0 centres and rotates (the -cor methods also divide by the standard deviation).
        shrinkage: "none", "ledoit-wolf", "oas", or a weight from 0 to 1. The first three equal scikit-learn's
            covariance estimators; they are computed from moments, exactly.

    Attributes:
        moments_: moments of the vectors, the complete state.
    """

    def __init__(
        self,
        method: Method = "pca",
        n_components: int | None = None,
        beta: float = 1.0,
        shrinkage: Shrinkage = "none",
    ) -> None:
        self.method = method
        self.n_components = n_components
        self.beta = beta
        self.shrinkage = shrinkage
        self._fitted: WhiteningMap | None = None
        self._single = False  # whether any vectors had less than float64's precision

    def fit(self, X: ArrayLike, y: object = None) -> "Whitening":
        """Discard the moments, and compute those of X, [n, d].

        Raises:
            UsageError: a parameter cannot be used as given, X is not finite numbers [n, d], or n is d + 1 or less
                without shrinkage or a small `n_components`.
        """
        self._fitted = None
        self._single = False
        self.__dict__.pop("moments_", None)
        self.partial_fit(X)
        self._map()
        return self

    def partial_fit(self, X: ArrayLike, y: object = None) -> "Whitening":
        """Add the moments of X, [n, d], to those of earlier calls.

        Raises:
            UsageError: X is not finite numbers [n, d], or d differs from earlier calls.
        """
        rows = self._checked(X)
        moments = Moments.empty(rows.shape[1])
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            with np.errstate(over="ignore", invalid="ignore"):  # numbers that are too large are refused below
                moments = moments.merge(Moments.of(_finite(rows[start : start + _ROWS_PER_BLOCK], start)))
        return self._add(moments, rows.dtype.kind == "f" and rows.dtype.itemsize < 8)

    def merge(self, other: "Whitening") -> "Whitening":
        """Add the moments of another estimator.

        Raises:
            UsageError: it has seen no vectors, or vectors of another size.
        """
        if not hasattr(other, "moments_"):
            raise UsageError("the other Whitening has seen no vectors; fit it first")
        if hasattr(self, "moments_") and other.n_features_in_ != self.n_features_in_:
            raise UsageError(
                f"the other Whitening has seen vectors of {other.n_features_in_} dimensions; wanted "
                f"{self.n_features_in_}, as this one"
            )
        return self._add(other.moments_, other._single)

    def transform(self, X: ArrayLike) -> Any:
        """Whiten X, [n, d] to [n, k], in float64; the result is float32 for float32, or a table (`set_output`).

        Raises:
            NotFittedError: the estimator has seen no vectors.
            UsageError: the parameters are not valid for the moments, or X is not finite numbers [n, d].
        """
        fitted, rows = self._map(), self._checked(X)
        kind: type[np.floating] = np.float32 if rows.dtype == np.float32 else np.float64
        white = np.empty((len(rows), fitted.weight.shape[1]), kind)
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            part = _finite(rows[start : start + _ROWS_PER_BLOCK], start)
            white[start : start + len(part)] = fitted(part.astype(np.float64))
        return self._in_container(white, X)

    def fit_transform(self, X: ArrayLike, y: object = None) -> Any:
        """Fit on X, then transform X."""
        return self.fit(X).transform(X)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the k columns, [k]: whitening0, whitening1 and so on.

        Raises:
            NotFittedError: the estimator has seen no vectors.
        """
        return np.array([f"whitening{index}" for index in range(self.weight_.shape[1])], dtype=object)

    def set_output(self, *, transform: str | None = None) -> "Whitening":
        """Choose what `transform` returns, as in scikit-learn.

        Args:
            transform: "default" for arrays, "pandas" or "polars" for tables; None changes nothing.

        Raises:
            UsageError: another value.
        """
        one_of("transform", transform, ("default", "pandas", "polars", None))
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # by this name, `clone` copies it
        return self

    def save(self, path: str | Path) -> None:
        """Write parameters and moments as safetensors.

        Raises:
            NotFittedError: the estimator has seen no vectors.
            WhitenError: the file cannot be written.
        """
        parameters = {name: str(_plain(value)) for name, value in self.get_params().items()}
        if self._single:
            parameters[_SINGLE] = "true"
        replace_file(Path(path), _in_order(save(_moments(self).to_arrays(), metadata=parameters)))

    @classmethod
    def load(cls, path: str | Path) -> "Whitening":
        """Read an estimator that `save` wrote.

        Raises:
            DataError: the file is not a saved estimator.
            UsageError: `path` is no path.
        """
        file_path = path_of("path", path)
        try:
            with safe_open(file_path, "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                parameters = file.metadata()
            components = parameters["n_components"]
            whitening = cls(
                parameters["method"],
                None if components == "None" else int(components),
                float(parameters["beta"]),
                parse_shrinkage(parameters["shrinkage"]),
            )
            return whitening._add(Moments.from_arrays(arrays), _SINGLE in parameters)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not a saved Whitening ({error}); save it again") from None

    @property
    def mean_(self) -> Float64Array:
        """Return the mean of the vectors, which is subtracted, [d], float64."""
        return self._map().mean

    @property
    def weight_(self) -> Float64Array:
        """Return W, [d, k], float64."""
        return self._map().weight

    @property
    def eigenvalues_(self) -> Float64Array:
        """Return the eigenvalues of the covariance before shrinkage, descending, [d], float64."""
        return self._map().eigenvalues

    @property
    def rank_(self) -> int:
        """Return the number of directions in which the vectors vary by more than rounding.

        Of vectors below float64's precision, those with an eigenvalue above 1e-6 of the largest.
        """
        return self._map().rank

    @property
    def shrinkage_(self) -> float:
        """Return the weight of the shrinkage that was applied."""
        return self._map().alpha

    @property
    def n_samples_seen_(self) -> int:
        """Return the number of vectors seen so far."""
        return _moments(self).n

    @property
    def n_features_in_(self) -> int:
        """Return the number of dimensions of the vectors seen, d."""
        return len(_moments(self).mean)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {name: getattr(self, name) for name in ("method", "n_components", "beta", "shrinkage")}

    def set_params(self, **parameters: Any) -> "Whitening":
        """Change arguments of the constructor; the moments are kept.

        Raises:
            UsageError: there is no such argument.
        """
        known = self.get_params()
        for name, value in parameters.items():
            if name not in known:
                raise UsageError(f"Whitening has no parameter '{name}', only {', '.join(known)}")
            setattr(self, name, value)
        self._fitted = None
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "moments_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            input_tags=InputTags(),
        )

    def __repr__(self) -> str:
        return f"Whitening({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def _add(self, moments: Moments, single: bool) -> "Whitening":
        if not np.isfinite(moments.scatter).all() or not np.isfinite(moments.fourth):
            raise UsageError("X holds numbers too large for float64 moments; scale it down")
        known: Moments | None = getattr(self, "moments_", None)
        self.moments_ = known.merge(moments) if known else moments
        self._single |= single
        self._fitted = None
        return self

    def _map(self) -> WhiteningMap:
        moments = _moments(self)
        spec = WhiteningSpec(self.method, self.n_components, self.beta, self.shrinkage)
        if self._fitted is None or self._fitted.spec != spec:
            if warning := check_sample_count(moments.n, len(moments.mean), spec, "vectors"):
                warnings.warn(warning, stacklevel=3)
            self._fitted = fit_map(moments, spec, what="vectors", exact=not self._single)
            if warning := _unwhitened(self._fitted, self._single):
                warnings.warn(warning, stacklevel=3)
        return self._fitted

    def _in_container(self, white: NDArray[np.floating], X: ArrayLike) -> Any:
        """Return an array as the container that was chosen here, or else in scikit-learn's configuration."""
        chosen = getattr(self, "_sklearn_output_config", {}).get("transform")
        if chosen is None and "sklearn" in sys.modules:
            chosen = sys.modules["sklearn"].get_config()["transform_output"]
        if chosen == "pandas":
            import pandas

            return pandas.DataFrame(white, getattr(X, "index", None), self.get_feature_names_out())
        if chosen == "polars":
            import polars

            return polars.DataFrame(white, self.get_feature_names_out().tolist(), orient="row")
        return white

    def _checked(self, X: ArrayLike) -> NDArray[np.generic]:
        if hasattr(X, "toarray"):
            raise UsageError("X is sparse; sparse input is not supported: pass X.toarray()")
        try:
            rows = np.asarray(X)
        except (TypeError, ValueError) as error:
            raise UsageError(f"X is not numbers [n, d] ({' '.join(str(error).split())})") from None
        message = f"X is {rows.dtype} of shape {rows.shape}; wanted real numbers [n, d]"
        if rows.dtype.kind == "c":
            raise UsageError(f"Complex data not supported: {message}")
        if rows.ndim == 1:
            raise UsageError(f"{message}. Reshape your data: X.reshape(1, -1) is one vector")
        if rows.ndim == 2 and not rows.shape[1]:
            raise UsageError(f"X has 0 feature(s) (shape={rows.shape}) while a minimum of 1 is required; wanted [n, d]")
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            raise UsageError(message)
        if hasattr(self, "moments_") and rows.shape[1] != self.n_features_in_:
            raise UsageError(
                f"X has {rows.shape[1]} features, but Whitening is expecting {self.n_features_in_} features as input"
            )
        return rows


def _unwhitened(fitted: WhiteningMap, single: bool) -> str | None:
    """Return a warning of columns that do not come out with deviation 1, though a whitening was asked for."""
    spec, width = fitted.spec, fitted.weight.shape[1]
    if spec is None or spec.beta != 1 or fitted.alpha:
        return None
    variances = np.einsum("dk,de,ek->k", fitted.weight, fitted.covariance, fitted.weight)
    off = [index for index in range(width) if abs(variances[index] - 1) > _OFF]
    if not off:
        return None
    return (
        f"{len(off)} of {width} columns do not come out with deviation 1, such as column {off[0]} with "
        f"{max(variances[off[0]], 0) ** 0.5:.2g}: there are {fitted.rank} directions in which the vectors vary by more "
        f"than rounding; keep as many with n_components{', or pass vectors in float64' if single else ''}"
    )


def _finite(part: NDArray[np.generic], start: int) -> NDArray[np.generic]:
    finite = np.isfinite(part).all(axis=1)
    if not finite.all():
        raise UsageError(f"X[{start + int(finite.argmin())}] is not finite: it holds NaN or infinity; leave it out")
    return part


def _moments(whitening: Whitening) -> Moments:
    if not hasattr(whitening, "moments_"):
        raise NotFittedError("this Whitening has seen no vectors; call fit or partial_fit first")
    moments: Moments = whitening.moments_
    return moments


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _in_order(content: bytes) -> bytes:
    """Return the content of a safetensors file with its metadata sorted: the package writes them in random order."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return content[:8] + text.ljust(length) + content[8 + length :]
