"""Remember the token ids of chunks of text, in bounded memory."""

from collections.abc import Mapping
from sys import getsizeof

from whiten_runtime.ort.process import ForkSafeLock

CACHE_BYTES = 8 << 20
"""Bytes that the ids of chunks may take: about 60,000 words. 8,656 words of English sentences take 1.1 MB."""

_TOKEN_BYTES = 8 + 32
"""Bytes of one id: its place in a tuple, and the int."""

_ENTRY_BYTES = 40 + 100
"""Bytes of an entry besides its chunk and ids: an empty tuple, and its place in a dictionary that is half full."""


class ChunkCache:
    """Maps chunks of text to token ids, and forgets those that were not used for long. Thread-safe.

    Entries are kept in two generations. New and used ones are in the recent generation; when it takes half of the
    memory, it becomes the former one, and the entries of the previous former one are forgotten. Reading an entry
    therefore needs no lock, and costs one look-up in a dictionary.

    Args:
        limit: maximum number of bytes.

    Attributes:
        recent: entries of the recent generation; the empty chunk is always one of them.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.recent: dict[str, tuple[int, ...]] = {"": ()}
        self._former: dict[str, tuple[int, ...]] = {}
        self._limit = limit // 2
        self._bytes = 0
        self._lock = ForkSafeLock()

    def find(self, chunk: str) -> tuple[int, ...] | None:
        """Return the ids of a chunk, or None if they are not known."""
        ids = self.recent.get(chunk)
        return self._former.get(chunk) if ids is None else ids

    def add(self, entries: Mapping[str, tuple[int, ...]]) -> None:
        """Add entries to the recent generation; those that are there already are not counted twice."""
        with self._lock:
            for chunk, ids in entries.items():
                if chunk in self.recent:
                    continue
                self._bytes += getsizeof(chunk) + _ENTRY_BYTES + _TOKEN_BYTES * len(ids)
                self.recent[chunk] = ids
                if self._bytes > self._limit:
                    self._former, self.recent, self._bytes = self.recent, {"": ()}, 0

    def __len__(self) -> int:
        return len(self.recent) + len(self._former)
