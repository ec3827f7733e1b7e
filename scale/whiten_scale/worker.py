"""Do items of a job in a process of its own: work and items come in on stdin, progress goes out on stdout."""

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO, Literal

import msgspec

from whiten_runtime.errors import WhitenError
from whiten_runtime.files.texts import import_parquet
from whiten_runtime.ort.process import unwind_on_sigterm
from whiten_runtime.ort.providers import silence_log
from whiten_scale.tasks import Work, opened


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what a worker tells.

    Attributes:
        kind: "ready", "advance", "done", or "failed".
        count: records done since the last "advance".
        message: what failed, in one line.
        code: exit code of the command.
    """

    kind: Literal["ready", "advance", "done", "failed"]
    count: int = 0
    message: str = ""
    code: int = 0


def main() -> None:
    """Read work, then numbers of items, until stdin is closed."""
    told = _channel()
    unwind_on_sigterm()
    silence_log()
    _ignore_interrupts()

    def tell(**facts: object) -> None:
        told.write(msgspec.json.encode(Told(**facts)) + b"\n")  # type: ignore[arg-type]
        told.flush()

    try:
        pyarrow, _ = import_parquet()
        pyarrow.set_cpu_count(1)
        do = opened(msgspec.json.decode(sys.stdin.buffer.readline(), type=Work))
        tell(kind="ready")
        busy = threading.Event()
        for item in _items(busy):
            do(item, lambda count: tell(kind="advance", count=count))
            busy.clear()
            tell(kind="done")
    except WhitenError as error:
        tell(kind="failed", message=str(error), code=error.exit_code)
    except MemoryError:
        tell(kind="failed", message="a worker is out of memory; use fewer --workers, or fewer texts a shard", code=1)
    except BrokenPipeError:
        pass  # the driver is gone
    except Exception as error:
        tell(kind="failed", message=f"unexpected {type(error).__name__}: {error}", code=1)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the driver ends those that have told it of a failure


def _channel() -> BinaryIO:
    """Return what is told to; what others print on stdout goes to stderr."""
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return told


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _items(busy: threading.Event) -> Iterator[int]:
    """Yield items as they come in, until the driver closes stdin.

    If it does so in the middle of an item, it was killed: the process then ends, and removes its unfinished file.
    """
    arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    source = os.fdopen(os.dup(0), "rb", buffering=0)  # a buffer has a lock, which a thread may hold when all ends

    def read() -> None:
        for line in iter(source.readline, b""):
            busy.set()
            arrived.put(int(line))
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        arrived.put(None)

    threading.Thread(target=read, name="whiten-driver", daemon=True).start()
    while (item := arrived.get()) is not None:
        yield item


if __name__ == "__main__":
    main()
