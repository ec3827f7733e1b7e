"""Keep which requests have no outcome yet."""

from collections.abc import Iterable
from threading import Condition, RLock

from whiten_runtime.inference.token_runner import TokenRunner
from whiten_serving.batching.request import Request


class OpenRequests:
    """Holds the requests that were queued and have no outcome yet, by the runner that computes them.

    Args:
        lock: the lanes' lock. Callers hold it.
    """

    def __init__(self, lock: RLock) -> None:
        self._emptied = Condition(lock)
        self._of: dict[TokenRunner, set[Request]] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._of.get(request.runner, ())

    @property
    def runners(self) -> list[TokenRunner]:
        """Return the runners that have requests."""
        return list(self._of)

    def add(self, request: Request) -> None:
        """Take a request that was queued."""
        self._of.setdefault(request.runner, set()).add(request)

    def settle(self, request: Request) -> None:
        """Note that a request has its outcome, or that its caller has gone; it may never have been queued."""
        request.gone = True
        others = self._of.get(request.runner, set())
        others.discard(request)
        if not others:
            self._of.pop(request.runner, None)
            self._emptied.notify_all()

    def waiting(self, runners: Iterable[TokenRunner]) -> list[Request]:
        """Return the requests of some runners of which texts wait."""
        return [request for runner in runners for request in self._of.get(runner, ()) if request.waiting]

    def wait_for_none(self, runner: TokenRunner) -> None:
        """Wait until a runner has no request; the lock is free meanwhile."""
        self._emptied.wait_for(lambda: runner not in self._of)
