"""Hold texts of several requests that are computed together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import WhitenError
from whiten_serving.batching.request import Request


@dataclass(frozen=True, slots=True)
class Item:
    """Names one text of a request."""

    request: Request
    index: int

    @property
    def length(self) -> int:
        """Return the number of tokens that the text takes in a batch."""
        return max(len(self.request.texts.ids[self.index]), 1)


@dataclass(frozen=True)
class Batch:
    """Holds texts that are computed together; all are of requests with the same key.

    Attributes:
        items: the texts, those of a request one after the other.
        tokens: number of tokens without padding.
        padding: number of tokens of padding.
    """

    items: tuple[Item, ...]
    tokens: int
    padding: int

    @classmethod
    def of(cls, items: Sequence[Item]) -> "Batch":
        """Return a batch of these texts."""
        lengths = [item.length for item in items]
        return cls(tuple(items), sum(lengths), len(lengths) * max(lengths) - sum(lengths))

    @property
    def ids(self) -> list[list[int]]:
        """Return the token ids of the texts."""
        return [item.request.texts.ids[item.index] for item in self.items]

    def run(self, alone: bool) -> NDArray[np.float32]:
        """Compute the vectors of the texts, float32 [n, k], in their order.

        Args:
            alone: whether no other batch runs meanwhile.

        Raises:
            WhitenError: onnxruntime fails, the encoder was closed, or the graph gives another number of vectors.
        """
        request = self.items[0].request
        vectors = request.runner.run(self.ids, request.texts.prompt_tokens, alone=alone)
        if len(vectors) != len(self.items):
            raise WhitenError(f"the graph gave {len(vectors)} vectors for {len(self.items)} texts; export it again")
        return vectors

    def alive(self) -> "Batch | None":
        """Return a batch without the texts of requests that were dropped; None if no text is left."""
        kept = [item for item in self.items if item.request.waiting]
        if len(kept) == len(self.items):
            return self
        return Batch.of(kept) if kept else None

    def singles(self) -> "list[Batch]":
        """Return a batch of each text."""
        return [Batch((item,), item.length, 0) for item in self.items]

    def by_request(self) -> list[tuple[Request, list[int]]]:
        """Return (request, places in the batch) for each request of it."""
        places = groupby(range(len(self.items)), key=lambda place: id(self.items[place].request))
        return [(self.items[rows[0]].request, rows) for rows in (list(group) for _, group in places)]
