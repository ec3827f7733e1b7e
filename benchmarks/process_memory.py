"""Read a process's memory from /proc (Linux). Standard library only, as `peers.worker` imports it."""

from pathlib import Path


def memory(process: int | None = None) -> dict[str, int]:
    """Return bytes by field of /proc/PID/status: VmRSS (resident), RssAnon (anonymous), VmHWM (peak resident), ...

    Linux counts a parent's peak in getrusage, but not here.

    Args:
        process: its id; default this process.

    Raises:
        OSError: there is no such process.
    """
    found = {}
    for line in Path(f"/proc/{process or 'self'}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = 1024 * int(value.split()[0])
    return found
