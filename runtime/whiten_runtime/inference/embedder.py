"""Texts to vectors in order: windows of texts are tokenised ahead, sorted by length, run, and put back."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import TextError, TooLongError
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.inference.engine import OUTPUT, Engine
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.forks import ForkSafeLock


@dataclass(frozen=True)
class Output:
    """What a call wants.

    Attributes:
        width: leading coordinates to keep.
        batch_size: texts per run at most, or None.
        normalize: divide each vector by its L2 norm.
        truncate: cut texts that are too long instead of raising.
        values: outputs of the graph, side by side.
    """

    width: int
    batch_size: int | None = None
    normalize: bool = False
    truncate: bool = True
    values: tuple[str, ...] = (OUTPUT,)


class Embedder:
    """A tokenizer and an engine. Thread-safe, and usable in forked children, as both are.

    Attributes:
        truncated: texts that were cut so far.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.truncated = 0
        self._count_lock = ForkSafeLock()

    def whole(self, value: str) -> Output:
        """All coordinates of one output of the graph."""
        return Output(self.engine.width_of(value), values=(value,))

    def windows(
        self,
        texts: Iterable[str],
        output: Output,
        advance: Callable[[int], object] = lambda count: None,
        first: int | None = None,
    ) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        """Yield up to `WINDOW` texts with their vectors, float32 [m, width], while a thread tokenises the next ones.

        Args:
            texts: read once, one window ahead.
            output: what is wanted.
            advance: told how many texts were embedded since it was last called.
            first: texts of the first window; None for what the engine begins with soonest.

        Raises:
            TextError: something is not a string; the message has its index.
            TooLongError: a text is too long and may not be cut.
        """
        stream = iter(texts)
        with ExitStack() as stack:
            executor = None
            size = min(WINDOW, first or self.engine.schedule.first_window)
            offset, window = 0, list(islice(stream, size))
            ids = self._token_ids(window, offset, output.truncate)
            while window:
                offset += len(window)
                following = list(islice(stream, WINDOW)) if len(window) == size else []
                size = WINDOW
                pending = None
                if following:
                    executor = executor or stack.enter_context(ThreadPoolExecutor(1, "whiten-tokenize"))
                    pending = executor.submit(self._token_ids, following, offset, output.truncate)
                yield window, self._embed(ids, output, advance)
                ids = pending.result() if pending else []
                window = following

    def _embed(self, ids: list[list[int]], output: Output, advance: Callable[[int], object]) -> NDArray[np.float32]:
        vectors = np.empty((len(ids), output.width), np.float32)
        for group, rows in self.engine.run(ids, output.batch_size, output.values):
            vectors[group] = rows[:, : output.width]
            advance(len(group))
        return unit(vectors) if output.normalize else vectors

    def _token_ids(self, texts: list[str], offset: int, truncate: bool) -> list[list[int]]:
        limit = self.tokenizer.max_seq_length
        ids = self.tokenizer.tokenize(checked_texts(texts, offset))
        too_long = [index for index, row in enumerate(ids) if len(row) > limit]
        if too_long and not truncate:
            index = too_long[0]
            raise TooLongError(
                f"texts[{offset + index}] has {len(ids[index])} tokens, but the bundle takes {limit}; "
                "shorten it, or pass truncate=True to cut it"
            )
        for index in too_long:
            ids[index] = self.tokenizer.cut(ids[index])
        if too_long:
            with self._count_lock:
                self.truncated += len(too_long)
        return ids


def checked_texts(texts: Iterable[str], offset: int = 0) -> list[str]:
    """The texts as a list.

    Args:
        texts: what should be strings.
        offset: index of the first, for the message.

    Raises:
        TextError: `texts` cannot be iterated, or something in it is not a string.
    """
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise TextError(f"texts is {_described(texts)}; wanted a str or an iterable of str")
    items = list(texts)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise TextError(f"texts[{offset + index}] is {_described(item)}; wanted a str")
    return items


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each row divided by its L2 norm; rows of zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.where(norms > 0, norms, 1), dtype=np.float32)


def _described(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
