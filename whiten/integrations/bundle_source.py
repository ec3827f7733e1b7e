"""Open bundles for adapters: once a process, and by the name and space that a framework has stored."""

import pickle
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from whiten_runtime.bundle.manifest import bundle_hash, read_manifest
from whiten_runtime.bundle.space import is_in_space, space_of
from whiten_runtime.encoder import Encoder, embedder_of
from whiten_runtime.errors import BundleError, UsageError, WhitenError
from whiten_runtime.hub import SCHEME, locate_bundle
from whiten_runtime.ort.process import ForkSafeLock

_MOST_OPEN = 8
"""Bundles that stay open though no adapter of them is left: Chroma makes a new one for each query."""

_lock = ForkSafeLock()


def open_encoder(encoder: Encoder | str | Path) -> Encoder:
    """Return the encoder, or open the bundle of this directory.

    Raises:
        UsageError: neither an encoder nor a path.
        BundleError: not a bundle, or an incomplete one.
    """
    if isinstance(encoder, Encoder):
        return encoder
    if not isinstance(encoder, str | Path):
        raise UsageError(f"the bundle is {encoder!r}; wanted its directory, or an Encoder")
    return Encoder(encoder)


class BundleSource:
    """The bundle of an adapter. Adapters of one process that name the same directory share one open encoder.

    A pickle or a copy in another process has the name and the id of the space, and opens the bundle when it is first
    needed.

    Args:
        bundle: the bundle's directory or name on the hub, or an open encoder.
        space: id of the space that stored vectors have; None if there are none yet.
        how: what to do where the bundle has moved, or another one has taken its place; ends a sentence.

    Raises:
        UsageError: neither an encoder nor a path.
    """

    def __init__(self, bundle: Encoder | str | Path, space: str | None = None, *, how: str = "") -> None:
        self._bundle: str | Path
        self._space, self._how = space, how
        self._encoder: Encoder | None = None
        self._pickle: bytes | None = None  # of an encoder that was passed
        if isinstance(bundle, Encoder):
            self._check(bundle)
            self._bundle, self._encoder, self._pickle = str(bundle.path), bundle, pickle.dumps(bundle)
        elif isinstance(bundle, str | Path):
            self._bundle = bundle
        else:
            raise UsageError(f"the bundle is {bundle!r}; wanted its directory, or an Encoder")

    @property
    def encoder(self) -> Encoder:
        """Return the encoder, opened when it is first needed.

        Raises:
            BundleError: not a bundle, an incomplete one, or none any more.
            UsageError: vectors of the bundle cannot be compared with those that are stored.
        """
        if self._encoder is None:
            try:
                encoder = _open_shared(self._bundle) if self._pickle is None else _shared(self._pickle)
            except BundleError as error:
                if self._space is None:
                    raise
                raise BundleError(f"{error}; if it has moved, {self._how}") from None
            self._check(encoder)
            self._encoder = encoder
        return self._encoder

    def _check(self, encoder: Encoder) -> None:
        if self._space is not None and not is_in_space(encoder.manifest, self._space):
            raise UsageError(
                f"{stored_name(encoder.path)}: gives vectors of the space '{encoder.space}', but those that are stored "
                f"are of '{self._space}'; put the bundle back, or, if it has moved, {self._how}; else embed again"
            )

    @property
    def name(self) -> str:
        """Return what is to be stored: a name on the hub with its commit, or a directory."""
        return str(self._bundle) if self._encoder is None else stored_name(self._encoder.path)

    @property
    def space(self) -> str | None:
        """Return the id of the space of the vectors; None where there is no bundle yet, and none was stored."""
        if self._encoder is not None:
            return self._encoder.space
        if self._space is not None:
            return self._space
        try:
            return space_of(read_manifest(Path(self._bundle)))
        except (WhitenError, OSError):
            return None

    def __getstate__(self) -> dict[str, Any]:
        return {"_bundle": self.name, "_space": self.space, "_how": self._how, "_pickle": self._pickle}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_encoder": None}

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Adapter:
    """Holds the bundle of an adapter; goes before a framework's base class."""

    _source: BundleSource

    def _hold(self, bundle: Encoder | str | Path, how: str = "") -> None:
        """Hold a bundle, and open it, so that a wrong path is told now."""
        self._source = BundleSource(bundle, how=how)
        self.encoder  # noqa: B018

    @property
    def encoder(self) -> Encoder:
        """Return the encoder."""
        return self._source.encoder


def stored_name(path: Path) -> str:
    """Return the name of a bundle for other processes: hf://ORG/NAME@COMMIT of one in the hub's cache, or its path."""
    repository, folder = path.parent.parent.name, path.parent.name
    if folder == "snapshots" and repository.startswith("models--"):
        return f"{SCHEME}{repository.removeprefix('models--').replace('--', '/', 1)}@{path.name}"
    return str(path)


def _open_shared(bundle: str | Path) -> Encoder:
    """Return the encoder of a directory, which is opened anew only if its bundle was replaced or it was closed."""
    path = locate_bundle(bundle).absolute()
    return _shared(path, bundle_hash(path))


def _shared(source: Path | bytes, sha256: str = "") -> Encoder:
    """Return the encoder of a directory whose manifest has this hash, or that of a pickle, unless it was closed."""
    with _lock:
        encoder = _opened(source, sha256)
        try:
            embedder_of(encoder).engine.check_open()
        except WhitenError:
            _opened.cache_clear()
            encoder = _opened(source, sha256)
    return encoder


@lru_cache(maxsize=_MOST_OPEN)
def _opened(source: Path | bytes, sha256: str) -> Encoder:
    encoder: Encoder = Encoder(source) if isinstance(source, Path) else pickle.loads(source)
    return encoder
