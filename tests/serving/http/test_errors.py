"""Errors of the library as answers, and when another attempt may help."""

import pytest

from whiten_runtime.errors import BundleError, ClosedError, TextError
from whiten_serving import DeadlineExceededError, OverloadedError, TooManyTokensError
from whiten_serving.http.errors import PROBLEMS, ApiError, of_answer, of_request


def test_statuses_that_clients_try_again_are_those_that_may_help() -> None:
    """openai-python tries 408, 409, 429 and all from 500 on again, unless x-should-retry says no."""
    for code, problem in PROBLEMS.items():
        again = problem.status in (408, 409, 429) or (problem.status >= 500 and code != "deadline")
        assert again == ("x-should-retry" not in ApiError(code, "a").headers), code


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (TextError("texts[1] is None"), "invalid_type", 400),
        (DeadlineExceededError("not computed within 1 s"), "deadline", 504),
        (TooManyTokensError("the request has 9 tokens, and 8 is the limit", 8), "too_many_tokens", 413),
        (ClosedError("the batcher is closed; create a new one"), "draining", 503),
        (BundleError("/srv/closed-beta/b/model.onnx: is damaged"), "engine", 500),
        (RuntimeError("[ONNXRuntimeError] : 6 :\n RUNTIME_EXCEPTION"), "engine", 500),
        (MemoryError(), "engine", 500),
    ],
)
def test_errors_of_the_library(error: Exception, code: str, status: int) -> None:
    answer = of_request(error)
    assert (answer.code, answer.problem.status) == (code, status)
    assert "\n" not in answer.message
    assert "/srv" not in answer.message


@pytest.mark.parametrize(
    ("seconds", "header", "milliseconds"), [(7.4, "7", "7400"), (0.0, "1", "50"), (1e9, "600", "600000")]
)
def test_the_time_to_wait(seconds: float, header: str, milliseconds: str) -> None:
    headers = dict(of_answer(OverloadedError("full", seconds)).headers)
    assert headers == {"retry-after": header, "retry-after-ms": milliseconds}
