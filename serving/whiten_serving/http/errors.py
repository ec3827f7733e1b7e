"""Answer what goes wrong: the status, words and headers of each kind of error, in each dialect."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from whiten_runtime.errors import ClosedError, NoVectorError, TextError, TooLongError, UsageError
from whiten_serving.requests import DeadlineExceededError, OverloadedError, TooManyTokensError

Dialect = Literal["openai", "tei", "ollama"]


_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "overloaded_error", 500: "server_error"}
_TYPES |= {503: "service_unavailable", 504: "timeout_error"}
"""Types of OpenAI's errors by their statuses; others are "invalid_request_error"."""


@dataclass(frozen=True)
class Problem:
    """Kind of error in each dialect."""

    status: int
    tei: str = "Validation"  # error_type of TEI's errors
    tei_status: int = 0  # HTTP status on TEI's routes, where it is another

    def status_in(self, dialect: Dialect) -> int:
        """Return the HTTP status in a dialect."""
        return self.tei_status if dialect == "tei" and self.tei_status else self.status


PROBLEMS = {
    "invalid_json": Problem(400, tei_status=422),
    "invalid_type": Problem(400, tei_status=422),
    "unknown_field": Problem(400, tei_status=422),
    "unsupported_value": Problem(400, tei_status=422),
    "token_ids": Problem(400, tei_status=422),
    "dimensions": Problem(400),
    "invalid_header": Problem(400),
    "empty_input": Problem(400, "Empty"),
    "empty_text": Problem(400, "Empty"),
    "context_length_exceeded": Problem(400, "Tokenizer", 422),
    "too_many_texts": Problem(413),
    "text_too_long": Problem(413),
    "too_many_tokens": Problem(413),
    "body_too_large": Problem(413),
    "unsupported_encoding": Problem(415),
    "no_vector": Problem(400, "Backend", 422),
    "unknown_host": Problem(421),
    "invalid_api_key": Problem(401),
    "model_not_found": Problem(404),
    "unknown_path": Problem(404),
    "method_not_allowed": Problem(405),
    "queue_full": Problem(429, "Overloaded"),
    "hung": Problem(503, "Unhealthy"),
    "failing": Problem(503, "Unhealthy"),
    "draining": Problem(503, "Unhealthy"),
    "deadline": Problem(504, "Backend"),
    "engine": Problem(500, "Backend", 424),
}
"""Every error by its code."""


class OpenAIErrorDetail(TypedDict):
    """Says what went wrong, and names the field of the request that it is about."""

    message: str
    type: str
    param: str | None
    code: Annotated[str, Meta(extra_json_schema={"enum": list(PROBLEMS)})]


class OpenAIError(TypedDict):
    """Body of an error on OpenAI's routes."""

    error: OpenAIErrorDetail


class TEIError(TypedDict):
    """Body of an error on TEI's routes."""

    error: str
    error_type: Annotated[str, Meta(extra_json_schema={"enum": sorted({problem.tei for problem in PROBLEMS.values()})})]


class OllamaError(TypedDict):
    """Body of an error on Ollama's routes."""

    error: str


ERROR_BODIES: dict[Dialect, type] = {"openai": OpenAIError, "tei": TEIError, "ollama": OllamaError}


class ApiError(Exception):
    """Raised when a request is answered with an error."""

    def __init__(
        self, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.problem, self.headers = PROBLEMS[code], headers or {}
        if self.problem.status not in (429, 500, 503):  # another attempt cannot help
            self.headers["x-should-retry"] = "false"

    def body(self, dialect: Dialect) -> OpenAIError | TEIError | OllamaError:
        """Return the body of the answer in a dialect."""
        if dialect == "tei":
            return {"error": self.message, "error_type": self.problem.tei}
        if dialect == "ollama":
            pull = " not found, try pulling it first"  # words that clients look for
            message = self.message.replace(" not found", pull, 1) if self.code == "model_not_found" else self.message
            return {"error": message}
        kind = _TYPES.get(self.problem.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class ClientGoneError(Exception):
    """Raised when a caller has gone before its answer; the status in logs and metrics is 499."""


_TOO_LONG: dict[Dialect, str] = {
    "openai": "This model's maximum context length is {limit} tokens, but {what}",
    "tei": "`inputs` must have less than {limit} tokens, but {what}",
    "ollama": "the input length exceeds the context length of {limit} tokens: {what}",
}
"""Words by which clients know that a text is too long, in each dialect."""


def too_long(error: TooLongError, limit: int, field: str, dialect: Dialect, advice: str) -> ApiError:
    """Return the answer to a request with a text that is too long for a limit of tokens."""
    what = f"{field}[{error.index or 0}] has {error.length} {error.unit}"
    words = _TOO_LONG[dialect].format(limit=limit, what=what)
    return ApiError("context_length_exceeded", f"{words}; {advice}", field)


def of_request(error: Exception) -> ApiError:
    """Return the answer to an error that was raised before a request was queued: the caller's own, mostly."""
    if isinstance(error, TextError):
        return ApiError("invalid_type", str(error), "input")
    if isinstance(error, UsageError):
        return ApiError("unsupported_value", str(error))
    return of_answer(error)


def of_answer(error: Exception) -> ApiError:
    """Return the answer to an error of a request that was queued."""
    if isinstance(error, OverloadedError):
        seconds = min(max(error.retry_after, 0.05), 600.0)
        headers = {"retry-after": f"{max(round(seconds), 1)}", "retry-after-ms": f"{round(seconds * 1000)}"}
        return ApiError("queue_full", str(error), None, headers)
    if isinstance(error, TooManyTokensError):
        return ApiError("too_many_tokens", str(error), "input")
    if isinstance(error, DeadlineExceededError):
        return ApiError("deadline", f"{error}; send fewer texts at once, or try again later")
    if isinstance(error, NoVectorError):  # of one text, whatever others are sent with it
        return ApiError("no_vector", str(error), f"input[{error.index}]")
    if isinstance(error, ClosedError):
        return draining("the server is about to stop; try again")
    return ApiError("engine", "the model failed on this request; the server's log says more, by its x-request-id")


def draining(message: str) -> ApiError:
    """Return the answer of a server that is about to stop."""
    return ApiError("draining", message, None, {"retry-after": "1", "retry-after-ms": "1000"})
