"""Embed texts of a dataset of Ray: `dataset.map_batches(Embed, fn_constructor_args=("my-bundle",), concurrency=8)`."""

from pathlib import Path
from typing import Any

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError


class Embed:
    """Adds the vectors of a column of texts to batches; each actor of Ray Data opens the bundle once.

    Args:
        bundle: the bundle's directory, under the same path on every node, or its name on the hub.
        column: column of the texts.
        to: column of the vectors, float32 [n, k].
        threads: threads of an actor; give `map_batches` the same number as `num_cpus`.
        options: options of `Encoder.encode`, such as `prompt_name` and `normalize_embeddings`.

    Raises:
        BundleError: not a bundle, or an incomplete one.
    """

    def __init__(
        self, bundle: str | Path, column: str = "text", *, to: str = "embedding", threads: int = 1, **options: Any
    ) -> None:
        self._encoder = Encoder(bundle, threads=threads)
        self._column, self._to, self._options = column, to, options

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with the vectors of its texts.

        Args:
            batch: columns by name, as arrays of numpy.

        Raises:
            UsageError: there is no such column.
            TextError: a value of it is no text.
        """
        if self._column not in batch:
            raise UsageError(f"a batch has no column {self._column!r}, only {', '.join(map(repr, batch))}")
        return {**batch, self._to: self._encoder.encode(list(batch[self._column]), **self._options)}
