"""Say which version this is."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the version of the installed distribution; "0" if it runs from its source without being installed."""
    try:
        return metadata.version("whiten")
    except metadata.PackageNotFoundError:
        return "0"
