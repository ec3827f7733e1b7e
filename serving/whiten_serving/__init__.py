"""whiten_serving: requests from many callers become batches of one encoder, inside a service or over HTTP."""

from whiten_serving.batcher import AsyncEncoder, Batcher
from whiten_serving.requests import DeadlineExceededError, OverloadedError, TooManyTokensError

__all__ = ["AsyncEncoder", "Batcher", "DeadlineExceededError", "OverloadedError", "TooManyTokensError"]
