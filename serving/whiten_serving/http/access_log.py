"""Log one line a request: what it was and what it cost, never a text."""

import logging
from datetime import UTC, datetime

from whiten_serving.http.call import Call
from whiten_serving.http.encoding import json_of
from whiten_serving.http.options import AccessLog

LOGGER = logging.getLogger("whiten.access")
"""Gets the line of each request, at level INFO, already formatted: its handlers should add nothing."""


def log(call: Call, seconds: float, form: AccessLog) -> None:
    """Log a request that was answered.

    Args:
        call: the request.
        seconds: time from the request to its answer.
        form: form of the line.
    """
    if form == "off" or not LOGGER.isEnabledFor(logging.INFO):
        return
    fields: dict[str, object] = {
        "time": _now(),
        "id": call.id,
        "method": call.method if call.method.isalpha() and len(call.method) <= 10 else "other",
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
    if call.code is not None:
        fields["error"] = call.code
    _write(fields, form)


def log_refused(status: int, code: str, form: AccessLog) -> None:
    """Log what was refused before it was a request.

    Args:
        status: HTTP status.
        code: code of the error.
        form: form of the line.
    """
    if form != "off" and LOGGER.isEnabledFor(logging.INFO):
        _write({"time": _now(), "method": "-", "route": "-", "status": status, "error": code}, form)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _write(fields: dict[str, object], form: AccessLog) -> None:
    LOGGER.info("%s", json_of(fields).decode() if form == "json" else _text(fields))


def _text(fields: dict[str, object]) -> str:
    first = f"{fields.pop('time')} {fields.pop('status')} {fields.pop('method')} {fields.pop('route')}"
    return f"{first} {' '.join(f'{name}={value}' for name, value in fields.items() if value not in ('', 0))}"
