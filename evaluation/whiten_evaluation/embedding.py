"""Embed the texts of an evaluation, each distinct one once, and store vectors in the ways that are compared."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.errors import BundleError, DataError, UsageError
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.options import Prompts
from whiten_runtime.ort.session import SessionOptions, providers_for
from whiten_runtime.reporter import Reporter
from whiten_whitening.codes import Coder
from whiten_whitening.moments import Float64Array

Rows = NDArray[np.float32]

Embed = Callable[[Sequence[str], str, Callable[[int], object]], Rows]
"""Embeds texts with a prompt, and calls a function with the number of texts of each batch."""


@dataclass(frozen=True)
class TextVectors:
    rows: dict[str, int]  # row of each text in `vectors`
    vectors: Rows  # [m, d]

    def of(self, texts: Iterable[str]) -> Float64Array:
        """Return the vectors of texts, float64 [n, d]."""
        return np.asarray(self.vectors[[self.rows[text] for text in texts]], np.float64)


def check_bundles(bundles: Iterable[Path], prompt_name: str | None = None) -> None:
    for bundle in bundles:
        manifest = read_manifest(bundle)
        if manifest.input != "text":
            raise BundleError(f"{bundle}: takes vectors, not texts; it cannot be evaluated on sentences")
        try:
            Prompts.of(manifest).resolve(prompt_name)
        except UsageError as error:
            raise UsageError(f"{bundle}: {error}") from None


@contextmanager
def open_embedder(bundle: Path) -> Iterator[Embed]:
    """Open a bundle to embed texts with a prompt, on the device of WHITEN_DEVICE.

    Raises:
        IntegrityError: it was replaced before the block ended, so that a manifest that was read there may be another's.
    """
    opened, embedder = load_bundle(bundle, SessionOptions(providers_for()))

    def embed(texts: Sequence[str], prompt: str, advance: Callable[[int], object]) -> Rows:
        vectors = embedder.embed(texts, replace(embedder.options, prompt=prompt), advance)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            text = texts[int(finite.argmin())]
            raise DataError(f"{bundle}: the vector of {text[:80]!r} is not finite; check the bundle with whiten verify")
        return vectors

    with embedder:
        yield embed
    opened.check_unchanged()


def embed_texts(
    bundle: Path, texts: Iterable[str], reporter: Reporter | None = None, prompt_name: str | None = None
) -> TextVectors:
    distinct = list(dict.fromkeys(texts))
    with open_embedder(bundle) as embed, (reporter or Reporter()).bar("texts", len(distinct)) as advance:
        prompt = Prompts.of(read_manifest(bundle)).resolve(prompt_name)
        vectors = embed(distinct, prompt, advance)
    return TextVectors({text: row for row, text in enumerate(distinct)}, vectors)


@dataclass(frozen=True)
class Storage:
    name: str
    bytes: Callable[[int], int]  # of a vector of so many coordinates
    document: Callable[[Rows], Rows] = lambda rows: rows  # what is read of vectors that were stored
    query: Callable[[Rows], Rows] = lambda rows: rows  # what such vectors are compared with


def storages(bundle: Path, types: Sequence[str], sizes: Sequence[int]) -> list[Storage]:
    """Return float32, and the other ways to store vectors: int8 with a scale a vector, signs, codes of some bytes.

    Raises:
        BundleError: the bundle has no whitening, whose moments codes need.
        UsageError: its vectors do not need so many bytes.
    """
    ways = [Storage("float32", lambda width: 4 * width)]
    if "int8" in types:
        ways.append(Storage("int8", lambda width: width + 4, _int8))
    if "binary" in types:
        ways.append(Storage("binary", lambda width: -(-width // 8), _signs))
    return ways + [_codes(Coder.of(bundle, size)) for size in sizes]


def _int8(rows: Rows) -> Rows:
    steps = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    return np.asarray(np.rint(rows / steps) * steps, np.float32)


def _signs(rows: Rows) -> Rows:
    return np.where(rows > 0, np.float32(1), np.float32(-1))


def _codes(coder: Coder) -> Storage:
    return Storage(
        "codes", lambda width: coder.bytes, lambda rows: coder.decode(coder.encode_array(rows)), coder.transform
    )
