"""Write the log: messages about the process, and a line for each request, as text or JSON."""

import json
import logging
from datetime import UTC, datetime
from typing import Literal

import orjson

from whiten_serving.http.calls import Call

ACCESS = logging.getLogger("whiten.access")
"""Gets a line for each request, at level INFO, already formatted: its handlers should add nothing."""


def set_up_logs(form: str) -> None:
    """Let uvicorn, asyncio and the application log in one form, and requests a line each, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name, level, one in (
        ("whiten.serving", logging.INFO, handler),
        ("uvicorn.error", logging.ERROR, handler),  # it warns of each offer of an upgrade, as Java sends them
        ("asyncio", logging.ERROR, handler),
        ("whiten.access", logging.INFO, logging.StreamHandler()),
    ):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [one], False
        logger.setLevel(level)


class TextLines(logging.Formatter):
    """Writes a message about the process in one line, with the type and text of its exception."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        cause = f": {type(error).__name__}: {error}" if error is not None else ""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        values = "".join(f"; {name}: {value}" for name, value in getattr(record, "values", {}).items())
        return level + " ".join(f"{record.getMessage()}{cause}{values}".split())


class JsonLines(TextLines):
    """Writes it as an object of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        values, record.values = getattr(record, "values", {}), {}
        written = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": super().format(record).removeprefix(f"{record.levelname.lower()}: "),
        }
        return json.dumps(written | values)


def log_request(call: Call, method: str, seconds: float, form: Literal["text", "json", "off"]) -> None:
    """Log what a request was and what it cost."""
    if form != "off" and ACCESS.isEnabledFor(logging.INFO):
        line = _line(call, method, seconds, form == "json")
        ACCESS.handle(logging.LogRecord(ACCESS.name, logging.INFO, "", 0, line, None, None))  # `info` costs 5 µs more


def _line(call: Call, method: str, seconds: float, as_json: bool) -> str:
    """Return the line of a request: what it was and what it cost, never a text."""
    fields: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": call.id,
        "method": method if method.isalpha() and len(method) <= 10 else "other",
        "route": call.route,
        "model": call.model,
        "status": call.status,
        "texts": call.texts,
        "tokens": call.tokens,
        "truncated": call.truncated,
        "queue_ms": round(call.queue_seconds * 1000, 2),
        "run_ms": round(call.run_seconds * 1000, 2),
        "total_ms": round(seconds * 1000, 2),
    }
    fields |= {name: value for name, value in (("client", call.client), ("error", call.code)) if value}
    if as_json:
        return orjson.dumps(fields).decode()
    first = " ".join(str(fields.pop(name)) for name in ("time", "status", "method", "route"))
    return f"{first} {' '.join(f'{name}={value}' for name, value in fields.items() if value not in ('', 0))}"
