"""Tell systemd what the process does: the protocol of sd_notify(3)."""

import os
import socket
import time
from contextlib import suppress


def notify(*lines: str) -> None:
    """Send lines such as READY=1 to the socket that systemd names in NOTIFY_SOCKET; does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.sendall("\n".join(lines).encode())


def notify_ready(status: str) -> None:
    """Say that requests are answered."""
    notify("READY=1", f"STATUS={status}")


def notify_reloading() -> None:
    """Say that bundles are being reloaded."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def notify_stopping() -> None:
    """Say that the process ends as soon as what runs is answered."""
    notify("STOPPING=1", "STATUS=draining")
