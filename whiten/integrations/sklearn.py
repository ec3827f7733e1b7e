"""Use a bundle as a transformer of scikit-learn: `BundleVectorizer`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from whiten.integrations.bundle_source import BundleSource
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, described, needing_package
from whiten_runtime.opened_bundle import encode_options

with needing_package("scikit-learn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

_HOW = "name it by set_params(bundle=PATH), in a Pipeline by set_params(STEP__bundle=PATH)"


class BundleVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns texts into vectors, as a step of a Pipeline. It learns nothing: `fit` only checks the options.

    It can be cloned, searched over and pickled. The bundle is opened when it is first needed. A pickle has the id of
    the space: until the vectorizer is fitted again, a bundle of another space is refused. Caches of scikit-learn's
    pipelines (`memory=`) keep spaces apart.

    Args:
        bundle: the bundle's directory, or an open encoder.
        prompt_name: name of one of the bundle's prompts; None for its default one.
        prompt: the prompt itself, in place of a name.
        normalize_embeddings: divide each vector by its L2 norm.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does.
        batch_size: maximum number of texts per batch; None for no limit but that of padded tokens.

    Raises:
        MissingPackageError: scikit-learn is not installed; raised where this module is imported.
    """

    def __init__(
        self,
        bundle: Encoder | str | Path,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.bundle = bundle
        self.prompt_name = prompt_name
        self.prompt = prompt
        self.normalize_embeddings = normalize_embeddings
        self.truncate_dim = truncate_dim
        self.batch_size = batch_size

    def fit(self, X: Iterable[str], y: object = None) -> Self:
        """Open the bundle and check the options.

        Args:
            X: texts, not read.
            y: not used.

        Raises:
            BundleError: not a bundle, or an incomplete one.
            UsageError: an option cannot be used as given.
        """
        self.__dict__.pop("_stored", None)  # what follows is fitted on the vectors of the bundle that is there now
        self._width()
        return self

    def transform(self, X: Iterable[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, float32 [n, k].

        Args:
            X: one text in each item, such as a list, a column of a table, or an array of strings [n].

        Raises:
            UsageError: a single text, or a table with columns.
            WhitenError: as in `Encoder.encode`.
        """
        if isinstance(X, str) or len(getattr(X, "shape", (0,))) != 1:
            raise UsageError(f"X is {described(X)}; wanted one column of texts, such as a list of str")
        vectors: NDArray[np.float32] = self._encoder().encode(
            X,
            prompt_name=self.prompt_name,
            prompt=self.prompt,
            normalize_embeddings=self.normalize_embeddings,
            truncate_dim=self.truncate_dim,
            batch_size=self.batch_size,
        )
        return vectors

    @property
    def _n_features_out(self) -> int:
        return self._width()

    def _width(self) -> int:
        encoder = self._encoder()
        options = encode_options(
            encoder,
            prompt_name=self.prompt_name,
            prompt=self.prompt,
            batch_size=self.batch_size,
            normalize_embeddings=self.normalize_embeddings,
            truncate_dim=self.truncate_dim,
        )
        return options.width or encoder.dimension

    def _encoder(self) -> Encoder:
        return self._source().encoder

    def _source(self) -> BundleSource:
        """Return the source of `bundle`, which `set_params` may have replaced since the last call."""
        stored: BundleSource | None = self.__dict__.get("_stored")
        opened: tuple[object, BundleSource | None, BundleSource] | None = self.__dict__.get("_opened")
        if opened is None or opened[0] is not self.bundle or opened[1] is not stored:
            if stored is not None and self.bundle == stored.name:
                source = stored
            else:
                source = BundleSource(self.bundle, None if stored is None else stored.space, how=_HOW)
            opened = self._opened = (self.bundle, stored, source)
        return opened[2]

    def __getstate__(self) -> dict[str, Any]:
        source = self._source()
        state = {name: value for name, value in super().__getstate__().items() if name != "_opened"}
        return state | {"bundle": source.name, "_stored": source}

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.one_d_array = tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags
