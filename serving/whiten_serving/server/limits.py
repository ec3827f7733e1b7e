"""Fit the number of connections to the process's limit of open files."""

import sys
from contextlib import suppress
from pathlib import Path

_SPARE = 48
"""Files that the process may open besides connections: bundles that are reloaded, logs, threads' pipes."""


def allowed_connections(wanted: int) -> int:
    """Raise the soft limit of open files as far as the connections need and the hard limit allows.

    Returns:
        The number of connections that fit, `wanted` at most and one at least.
    """
    if sys.platform == "win32":
        return wanted
    import resource

    used = _open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + used + _SPARE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - used - _SPARE))


def _open_files() -> int:
    for place in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(list(Path(place).iterdir()))
    return _SPARE
