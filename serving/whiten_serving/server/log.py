"""Log what the process does, as lines of text or of JSON on stderr."""

import json
import logging
from asyncio import CancelledError
from datetime import UTC, datetime
from typing import Literal

from whiten_serving.server.stderr import Lines

Form = Literal["text", "json"]


class Log:
    """Writes messages about the process. Requests have a log of their own.

    Args:
        form: "text" or "json".

    Attributes:
        lines: where it writes.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.lines = Lines(self._about_lost)

    def info(self, message: str, **values: object) -> None:
        """Write a message; its values are written in JSON only."""
        self._write("info", message, values)

    def warn(self, message: str) -> None:
        """Write a warning."""
        self._write("warning", message, {})

    def error(self, message: str) -> None:
        """Write an error."""
        self._write("error", message, {})

    def _write(self, level: str, message: str, values: dict[str, object]) -> None:
        self.lines.write(self._line(level, message, values))

    def _about_lost(self, count: int) -> str:
        return self._line("warning", f"{count} lines were left out, since nobody read them", {"lost": count})

    def _line(self, level: str, message: str, values: dict[str, object]) -> str:
        if self.form == "json":
            return json.dumps({"time": _now(), "level": level, "message": message, **values})
        return message if level == "info" else f"{level}: {message}"


class Requests(logging.Handler):
    """Writes the lines of requests, which are formatted already.

    Args:
        lines: where they are written.
    """

    def __init__(self, lines: Lines) -> None:
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of one request."""
        self._lines.write(record.getMessage())


class Handler(logging.Handler):
    """Gives records of uvicorn and asyncio to a log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record in one line: its message, and the type and text of its exception.

        Requests that the end of the grace cut off are left out: a line tells their number.
        """
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CancelledError):
            return
        cause = f": {type(error).__name__}: {error}" if error is not None else ""
        self._log.error(" ".join(f"{record.getMessage()}{cause}".split()))


def take_over(log: Log) -> None:
    """Let uvicorn, asyncio and the application log their errors in our form, and requests a line each, on stderr."""
    for name in ("uvicorn.error", "asyncio", "whiten.serving"):
        _give(name, Handler(log), logging.ERROR)
    _give("whiten.access", Requests(log.lines), logging.INFO)


def _give(name: str, handler: logging.Handler, level: int) -> None:
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
