"""Define the errors of requests that are not computed."""

from whiten_runtime.errors import WhitenError


class OverloadedError(WhitenError):
    """Raised when a request is refused because too much work waits already.

    Attributes:
        retry_after: seconds until the work that waits is done, at the rate measured so far.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceededError(WhitenError, TimeoutError):
    """Raised when a request was not computed by its deadline."""
