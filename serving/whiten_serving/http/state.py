"""Hold what a server's state is: ready, or draining."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from whiten_serving.http.bodies import Bodies


@dataclass
class State:
    """Holds the state of a server. The server changes it, in the event loop's thread; the application reads it.

    Attributes:
        ready: whether the models are open and proven, so that requests are computed.
        draining: whether the server is about to stop: it still computes, but /ready says no, and connections are closed
            after each answer.
        parity: worst cosine between vectors of this machine and the reference's, by name of the model; empty where it
            was not measured.
        connections: number of connections that are taken at most; None where that is not known.
        settings: options of the process by their names, for /info; empty where the application is mounted.
        refused: number of requests and connections that were refused before the application, by code.
        bodies: count of the bytes of bodies that are read or wait.
    """

    ready: bool = False
    draining: bool = False
    parity: dict[str, float] = field(default_factory=dict)
    connections: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    bodies: Bodies = field(default_factory=Bodies)

    @property
    def accepting(self) -> bool:
        """Return whether a load balancer should send requests here."""
        return self.ready and not self.draining
