"""Share what `Encoder` and `VectorWhitener` have in common: manifest, similarities, ranges, `with`, and pickling."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import Bundle
from whiten_runtime.bundle.manifest import Manifest, Similarity
from whiten_runtime.bundle.parity import (
    Agreement,
    Probes,
    Proof,
    alone_and_batched,
    compare,
    compute_long,
    expected_long,
    gate_here,
    read_probes,
)
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import UsageError
from whiten_runtime.inference.options import EncodeArguments, EncodeOptions, stored_ranges
from whiten_runtime.inference.vectors import OutputMoments, comparable, row_similarities, similarity_matrix
from whiten_runtime.ort.session import SessionOptions, describe_providers

Opened = TypeVar("Opened", bound="OpenedBundle")

_REOPENED = frozenset(
    {
        *("_bundle", "_embedder", "_engine", "_moments", "_opening", "_passages", "_session", "_tokenizer"),
        "providers",
    }
)
"""Attributes that opening a bundle makes; all others are of subclasses."""


@dataclass(frozen=True)
class Opening:
    """Says how a bundle was opened, so that a copy can be opened in the same way."""

    path: Path  # absolute: the process may change its directory before it forks or pickles
    options: SessionOptions
    verify_hashes: bool = True
    verify: bool = False
    cuda_graphs: bool = False
    max_characters: int | None = None
    sha256: str | None = None  # of the manifest of the bundle that was opened; None before that


class OpenedBundle:
    """An open bundle. Subclasses open it in `_open`."""

    _bundle: Bundle
    _moments: OutputMoments | None  # of its vectors over its corpus, if it stores them
    _opening: Opening

    def _open(self, opening: Opening) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Free the graph. The object cannot be used afterwards."""
        raise NotImplementedError

    def _probed(self, probes: Probes) -> tuple[Callable[[Any], NDArray[np.float32]], Any]:
        raise NotImplementedError

    def _run_batch(self, items: Any) -> NDArray[np.float32]:
        raise NotImplementedError

    def verify(self, quick: bool = False) -> Agreement:
        """Compute the bundle's probes, alone and batched, and compare them with the stored vectors of the reference.

        Args:
            quick: leave out the texts of the maximum length and of half of it, which bundles of more than 1,024 tokens
                have besides the others: 8,192 tokens take seconds.

        Raises:
            BundleError: the probes are missing or damaged.
        """
        probes = read_probes(self._bundle)
        run, items = self._probed(probes)
        alone, batched = alone_and_batched(run, items)
        got, want = [batched, alone], [np.tile(probes.embeddings, (2, 1))]
        if probes.long is not None and not quick:
            _, long = self._probed(probes.long)
            got.append(compute_long(self._run_batch, items, long))
            want.append(expected_long(probes))
        return compare(np.concatenate(got), np.concatenate(want))

    def similarity(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Return the similarity of every vector of `a` with every vector of `b`.

        It is `similarity_fn_name`: the cosine, unless the model's authors say otherwise; a dot product; or the negative
        euclidean or manhattan distance. Vectors are taken as float32, and may be as long or as short as float32 allows.
        Arrays of int8, uint8 and bool are refused, since similarities of codes are not those of the vectors.

        Args:
            a: shape [n, k] or [k].
            b: shape [m, k] or [k].

        Returns:
            float32 [n, m]; the cosine of a vector of norm zero with any other is 0. A dot product or distance that
            float32 cannot hold is infinite.

        Raises:
            UsageError: the vectors have different numbers of dimensions, or the type of codes.
            TextError: they are not numbers, or not finite; the message has the first index.
        """
        first, second = comparable(a, b)
        return similarity_matrix(first, second, self.similarity_fn_name)

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Return the similarity of each vector of `a` with the same one of `b`, by the function of `similarity`.

        Args:
            a: shape [n, k] or [k].
            b: shape [n, k] or [k], as `a`.

        Returns:
            float32 [n]; of two single vectors, an array without dimensions.

        Raises:
            UsageError: there are different numbers of vectors or dimensions, or vectors of the type of codes.
            TextError: they are not numbers, or not finite; the message has the first index.
        """
        first, second = comparable(a, b)
        if len(first) != len(second):
            raise UsageError(f"a holds {len(first)} vectors and b {len(second)}; wanted as many, or call similarity")
        scores = row_similarities(first, second, self.similarity_fn_name)
        return scores.reshape(()) if np.ndim(a) == np.ndim(b) == len(scores) == 1 else scores

    def ranges(self, *, normalize_embeddings: bool = False, truncate_dim: int | None = None) -> NDArray[np.float32]:
        """Return the ranges that `precision="int8"` and `"uint8"` divide into 255 steps, from the bundle alone.

        The bundle stores the moments of its corpus before whitening, from which the mean and the standard deviation σ
        of each finished coordinate follow. A range is the mean ± 5.5 σ. For normally distributed coordinates, 8 bits
        have the least mean square error at 4 σ, but coordinates of real vectors have longer tails, and of texts unlike
        the corpus a larger σ: what is outside is clipped. On STS-B, the error of all-MiniLM-L6-v2 is 1.6e-4 to 2.3e-4
        of the variance, and cosines of its vectors change by 7e-4 to 9e-4 in the mean. Where vectors are normalised,
        the ranges are divided by the root mean square norm; compared with the moments of the texts' own normalised
        vectors, that adds some percent to the error.

        Args:
            normalize_embeddings: whether the vectors are divided by their norm, as in `encode`.
            truncate_dim: number of leading coordinates that are kept, as in `encode`.

        Returns:
            float32 [2, k]: the lower ends, then the upper ends, as `quantize_embeddings` of sentence-transformers takes
            them.

        Raises:
            UsageError: the bundle stores no moments, or `truncate_dim` cannot be used.
        """
        options = encode_options(self, normalize_embeddings=normalize_embeddings, truncate_dim=truncate_dim)
        width = options.width or self.dimension
        return stored_ranges(self.manifest, self._moments, width, options.normalize)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the number of coordinates of a vector, k, as sentence-transformers calls it; `dimension` here."""
        return self.dimension

    def get_embedding_dimension(self) -> int:
        """Return the number of coordinates of a vector, k, as sentence-transformers 6 calls it; `dimension` here."""
        return self.dimension

    @property
    def similarity_fn_name(self) -> Similarity:
        """Return the similarity that the model was trained for: "cosine", "dot", "euclidean" or "manhattan"."""
        return self._bundle.manifest.similarity_fn_name

    @property
    def path(self) -> Path:
        """Return the bundle's directory, absolute; for a bundle of the model hub, its snapshot in the cache."""
        return self._bundle.path

    @property
    def manifest(self) -> Manifest:
        """Return the bundle's manifest."""
        return self._bundle.manifest

    @property
    def dimension(self) -> int:
        """Return the number of coordinates of a vector, k."""
        return self._bundle.manifest.dimension

    @property
    def bundle_sha256(self) -> str:
        """Return the SHA-256 of the bundle's whiten.json, which holds that of each of its files, in hexadecimal."""
        return self._bundle.sha256

    @property
    def space(self) -> str:
        """Return the id of the space of the vectors: bundles with the same one give vectors that can be compared."""
        return space_of(self._bundle.manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        added = {name: value for name, value in self.__dict__.items() if name not in _REOPENED}
        return reopen, (type(self), self._opening), added or None

    def _prove(self) -> None:
        """Compute the bundle's probes, and close it if a bound of the parity gate is not kept."""
        try:
            proof_of(self, quick=True).check(self.path)
        except BaseException:
            self.close()
            raise


def encode_options(opened: OpenedBundle, **arguments: Unpack[EncodeArguments]) -> EncodeOptions:
    if unknown := arguments.keys() - EncodeArguments.__annotations__.keys():
        raise UsageError(
            f"{min(unknown)!r} is no argument of this call; wanted some of {', '.join(EncodeArguments.__annotations__)}"
        )
    return EncodeOptions.of(opened.manifest, opened._moments, **arguments)


def stores_ranges(opened: OpenedBundle) -> bool:
    """Return whether a bundle stores the moments from which the ranges of int8 and uint8 follow."""
    return opened._moments is not None


def bundle_of(opened: OpenedBundle) -> Bundle:
    """Return the bundle of an encoder or whitener, whose files were checked, for packages of whiten that read them."""
    return opened._bundle


def providers_of(opened: OpenedBundle) -> str:
    return describe_providers(opened._opening.options.providers)


def proof_of(opened: OpenedBundle, quick: bool = False) -> Proof:
    """Compute the probes of an open bundle, and return how near they are to the reference's vectors.

    With `quick`, texts of more than 1,024 tokens are left out.
    """
    parity = opened.manifest.parity
    return Proof(
        agreement=opened.verify(quick),
        gate=gate_here(opened.manifest),
        reference=parity.reference.split(",")[0] if parity else "its reference",
        provider=providers_of(opened),
    )


def reopen(kind: type[Opened], opening: Opening) -> Opened:
    """Open a bundle as another object of this kind was opened, as in the process that unpickles it.

    Raises:
        IntegrityError: another bundle is at its path now.
    """
    opened = kind.__new__(kind)
    opened._open(opening)
    return opened
