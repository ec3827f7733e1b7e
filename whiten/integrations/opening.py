"""Open a bundle for a framework."""

from pathlib import Path

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError


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
