"""Send requests over many connections, as cheaply as Python can: one thread, selectors, requests made in advance.

Standard library only. A request costs it some 30 µs of processor, which it takes from the server beside it.
"""

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles

Address = tuple[str, int]


@dataclass
class Sample:
    """Holds what one load measured."""

    seconds: float = 0.0  # time of the load
    times: list[float] = field(default_factory=list)  # seconds of each answer of status 200, in their order
    refusals: list[float] = field(default_factory=list)  # seconds of each answer of status 429
    failed: int = 0  # answers of other statuses, and connections that ended

    @property
    def rate(self) -> float:
        """Return answers of status 200 a second."""
        return len(self.times) / self.seconds

    def percentile(self, percent: int) -> float:
        """Return a percentile of the times, in seconds."""
        return quantiles(self.times, n=100, method="inclusive")[percent - 1]


@dataclass(eq=False)
class _Connection:
    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    begun: float = 0.0


def request(path: str, body: object, key: str | None = None) -> bytes:
    """Return the bytes of a POST of JSON."""
    data = json.dumps(body).encode()
    access = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: benchmark\r\n{access}content-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def closed_loop(address: Address, requests: Sequence[bytes], clients: int, seconds: float) -> Sample:
    """Let each client send the next request as soon as it has the answer to its last one."""
    return _run(address, requests, clients, seconds, None)


def open_loop(address: Address, requests: Sequence[bytes], clients: int, seconds: float, rate: float) -> Sample:
    """Send requests at a rate that does not depend on the answers, on as many idle connections as there are."""
    return _run(address, requests, clients, seconds, rate)


def _run(address: Address, requests: Sequence[bytes], clients: int, seconds: float, rate: float | None) -> Sample:
    sample, sent, due = Sample(), 0, 0
    idle = deque(_connect(address) for _ in range(clients))
    busy = 0
    with selectors.DefaultSelector() as selector:
        start = time.perf_counter()
        while True:
            now = time.perf_counter() - start
            more = now < seconds
            due = clients + sent if rate is None else int(now * rate)
            while more and idle and sent < due:
                connection = idle.popleft()
                connection.begun = time.perf_counter()
                connection.sock.sendall(requests[sent % len(requests)])
                selector.register(connection.sock, selectors.EVENT_READ, connection)
                sent, busy = sent + 1, busy + 1
            if not more and not busy:
                break
            pause = 1.0 if rate is None else max(0.0, min(0.05, (sent + 1) / rate - now)) if idle and more else 0.05
            for key, _ in selector.select(pause):
                connection = key.data
                if (status := _receive(connection)) is not None:
                    selector.unregister(connection.sock)
                    busy -= 1
                    idle.append(_count(sample, connection, status, address))
        sample.seconds = time.perf_counter() - start
    for connection in idle:
        connection.sock.close()
    return sample


def _connect(address: Address) -> _Connection:
    sock = socket.create_connection(address, 120)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Connection(sock)


def _receive(connection: _Connection) -> int | None:
    """Read what has come; return the status of an answer that is complete, and 0 for a connection that has ended."""
    try:
        part = connection.sock.recv(1 << 18)
    except OSError:
        return 0
    if not part:
        return 0
    connection.received += part
    end = connection.received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(connection.received[:end]).lower()
    place = head.index(b"content-length:") + 15
    length = int(head[place:].split(b"\r\n", 1)[0])
    return int(head[9:12]) if len(connection.received) >= end + 4 + length else None


def _count(sample: Sample, connection: _Connection, status: int, address: Address) -> _Connection:
    """Count an answer, and return a connection for the next request."""
    took = time.perf_counter() - connection.begun
    if status == 200:
        sample.times.append(took)
    elif status == 429:
        sample.refusals.append(took)
    else:
        sample.failed += 1
    closes = status == 0 or b"connection: close" in bytes(connection.received[:2000]).lower()
    connection.received.clear()
    if not closes:
        return connection
    connection.sock.close()
    return _connect(address)
