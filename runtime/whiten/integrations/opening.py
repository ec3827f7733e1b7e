"""Open a bundle for a framework, and name the framework where it is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import MissingPackageError, UsageError


@contextmanager
def framework(package: str) -> Iterator[None]:
    """Turn an ImportError in the block into an error that names the package to install.

    Raises:
        MissingPackageError: the package, or the part of it that is imported, is not installed.
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:
        raise MissingPackageError(
            f"this needs {error.name or error}; install it with pip install '{package}'"
        ) from error


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
