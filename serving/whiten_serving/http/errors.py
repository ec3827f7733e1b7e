"""Define the errors of requests: each has a code, by which every dialect finds its status and its words."""

import re
from dataclasses import dataclass
from typing import Literal

from whiten_runtime.errors import TextError, TooLongError, UsageError, WhitenError
from whiten_serving.errors import DeadlineExceededError, OverloadedError
from whiten_serving.http.models import UnknownModelError

Dialect = Literal["openai", "tei", "ollama"]
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Problem:
    """Describes a kind of error in each dialect.

    Attributes:
        status: HTTP status.
        kind: `type` of OpenAI's errors.
        tei: `error_type` of TEI's errors.
        tei_status: HTTP status on TEI's routes, where it is another; else 0.
        headers: headers of the answer.
        close: whether the connection is closed, because the body was not read.
    """

    status: int
    kind: str
    tei: str
    tei_status: int = 0
    headers: Headers = ()
    close: bool = False

    def status_in(self, dialect: Dialect) -> int:
        """Return the HTTP status in a dialect."""
        return self.tei_status if dialect == "tei" and self.tei_status else self.status


_INVALID = "invalid_request_error"
_NEVER: Headers = ((b"x-should-retry", b"false"),)
_SOON: Headers = ((b"retry-after", b"1"), (b"retry-after-ms", b"1000"))

PROBLEMS = {
    "invalid_json": Problem(400, _INVALID, "Validation", 422, _NEVER),
    "invalid_type": Problem(400, _INVALID, "Validation", 422, _NEVER),
    "unknown_field": Problem(400, _INVALID, "Validation", 422, _NEVER),
    "unsupported_value": Problem(400, _INVALID, "Validation", 422, _NEVER),
    "token_ids": Problem(400, _INVALID, "Validation", 422, _NEVER),
    "dimensions": Problem(400, _INVALID, "Validation", 0, _NEVER),
    "invalid_header": Problem(400, _INVALID, "Validation", 0, _NEVER, close=True),
    "empty_input": Problem(400, _INVALID, "Empty", 0, _NEVER),
    "empty_text": Problem(400, _INVALID, "Empty", 0, _NEVER),
    "context_length_exceeded": Problem(400, _INVALID, "Tokenizer", 422, _NEVER),
    "too_many_texts": Problem(413, _INVALID, "Validation", 0, _NEVER),
    "too_many_values": Problem(413, _INVALID, "Validation", 0, _NEVER),
    "text_too_long": Problem(413, _INVALID, "Validation", 0, _NEVER),
    "body_too_large": Problem(413, _INVALID, "Validation", 0, _NEVER, close=True),
    "unsupported_encoding": Problem(415, _INVALID, "Validation", 0, (*_NEVER, (b"accept-encoding", b"identity")), True),
    "headers_too_large": Problem(431, _INVALID, "Validation", 0, _NEVER, close=True),
    "body_timeout": Problem(408, "timeout_error", "Validation", close=True),
    "invalid_api_key": Problem(
        401, "authentication_error", "Validation", 0, (*_NEVER, (b"www-authenticate", b"Bearer")), True
    ),
    "model_not_found": Problem(404, "not_found_error", "Validation", 0, _NEVER),
    "unknown_path": Problem(404, "not_found_error", "Validation", 0, _NEVER, close=True),
    "method_not_allowed": Problem(405, _INVALID, "Validation", 0, _NEVER, close=True),
    "wrong_model_kind": Problem(424, _INVALID, "Backend", 0, _NEVER),
    "queue_full": Problem(429, "overloaded_error", "Overloaded"),
    "bodies_full": Problem(429, "overloaded_error", "Overloaded", 0, _SOON, close=True),
    "threads_busy": Problem(429, "overloaded_error", "Overloaded", 0, _SOON),
    "not_ready": Problem(503, "service_unavailable", "Unhealthy", 0, _SOON, close=True),
    "draining": Problem(503, "service_unavailable", "Unhealthy", 0, _SOON, close=True),
    "deadline": Problem(504, "timeout_error", "Backend"),
    "engine": Problem(500, "server_error", "Backend", 424),
}
"""Every error by its code."""


class ApiError(Exception):
    """Raised when a request is answered with an error.

    Attributes:
        code: code of the error, a key of `PROBLEMS`.
        message: one line for the caller.
        param: field of the request at fault; None for none.
        headers: headers of the answer, besides those of the problem.
    """

    def __init__(self, code: str, message: str, param: str | None = None, headers: Headers = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.headers = code, message, param, headers

    @property
    def problem(self) -> Problem:
        """Return what the code means."""
        return PROBLEMS[self.code]

    def body(self, dialect: Dialect) -> dict[str, object]:
        """Return the body of the answer in a dialect."""
        if dialect == "tei":
            return {"error": self.message, "error_type": self.problem.tei}
        if dialect == "ollama":
            return {"error": self.message}
        return {
            "error": {"message": self.message, "type": self.problem.kind, "param": self.param, "code": self.code},
        }


class ClientGoneError(Exception):
    """Raised when a caller has gone before its answer; the status in logs and metrics is 499."""


def of_request(error: Exception) -> ApiError:
    """Return the answer to an error that was raised before a request was queued: the caller's own, mostly."""
    if isinstance(error, TooLongError):
        hint = "; send shorter texts, or leave truncation on"
        return ApiError("context_length_exceeded", str(error).split(";")[0] + hint, "input")
    if isinstance(error, TextError):
        return ApiError("invalid_type", str(error), "input")
    if isinstance(error, UsageError):
        return _of_usage(str(error))
    return of_answer(error)


def of_answer(error: Exception) -> ApiError:
    """Return the answer to an error of a request that was queued."""
    if isinstance(error, OverloadedError):
        return overloaded(error)
    if isinstance(error, DeadlineExceededError):
        return ApiError("deadline", f"{error}; send fewer texts at once, or try again later")
    if isinstance(error, UnknownModelError):
        return ApiError("model_not_found", str(error), "model")
    if isinstance(error, WhitenError) and "closed" in str(error):
        return ApiError("draining", "the server is about to stop; try again")
    return ApiError("engine", f"the model failed on this request ({_line(error)}); the server's log may say more")


def overloaded(error: OverloadedError) -> ApiError:
    """Return the answer to a request that came when too much work waited."""
    seconds = min(max(error.retry_after, 0.05), 600.0)
    headers = ((b"retry-after", b"%d" % max(round(seconds), 1)), (b"retry-after-ms", b"%d" % round(seconds * 1000)))
    return ApiError("queue_full", str(error), None, headers)


_RANGES = re.compile(r"pass ranges, float32 \[2, \d+\], or ")
"""Remedy of the library that requests do not have."""


def _of_usage(message: str) -> ApiError:
    """Return the answer to an option of the library that cannot be used, in the words of requests."""
    message = _RANGES.sub("", message)
    if "truncate_dim" in message:
        return ApiError("dimensions", message.replace("truncate_dim", "dimensions"), "dimensions")
    return ApiError("unsupported_value", message)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
