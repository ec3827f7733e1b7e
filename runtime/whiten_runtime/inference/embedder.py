"""Embed texts in order: tokenise windows of texts ahead, sort them by length, run batches, restore the order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph_names import OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.checks import checked_texts, whole_number
from whiten_runtime.errors import TooLongError, UsageError
from whiten_runtime.inference.engine import Engine
from whiten_runtime.inference.prompts import Prompts, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.inference.vectors import unit
from whiten_runtime.ort.process import ForkSafeLock


@dataclass(frozen=True)
class EncodeOptions:
    """Holds the options of one call.

    Attributes:
        width: number of leading coordinates to keep.
        batch_size: maximum number of texts per batch, or None.
        normalize: divide each vector by its L2 norm.
        truncate: truncate texts that are too long instead of raising.
        values: outputs of the graph, concatenated.
        prompt: text that is put before each text, or around it; see `prompts.with_prompt`.
    """

    width: int
    batch_size: int | None = None
    normalize: bool = False
    truncate: bool = True
    values: tuple[str, ...] = (OUTPUT,)
    prompt: str = ""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        batch_size: int | None = None,
        normalize: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
        prompt: str = "",
    ) -> "EncodeOptions":
        """Check a caller's options against a bundle.

        Raises:
            UsageError: `batch_size` or `truncate_dim` is out of range, or the bundle's vectors cannot be truncated.
        """
        width = manifest.dimension
        if truncate_dim is not None:
            width = whole_number("truncate_dim", truncate_dim, 1, width, ", the bundle's dimension")
            _check_nested(manifest, width)
            normalize = normalize or manifest.normalize
        rows = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        return cls(width, rows, normalize, truncate, prompt=prompt)


class Embedder:
    """Embeds texts with a tokenizer and an engine. Thread-safe, and usable in forked children.

    Args:
        tokenizer: tokenizer of the graph.
        engine: engine with the graph.
        prompts: prompts of the model; None for none.

    Attributes:
        truncated: number of texts that were truncated so far.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine, prompts: Prompts | None = None) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.prompts = prompts or Prompts()
        self.truncated = 0
        self._count_lock = ForkSafeLock()

    def close(self) -> None:
        """Free the model. The embedder cannot be used afterwards."""
        self.engine.close()

    def __enter__(self) -> "Embedder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def whole(self, value: str, prompt_name: str | None = None) -> EncodeOptions:
        """Return options for all coordinates of one output of the graph, with a prompt or the default one."""
        return EncodeOptions(self.engine.width_of(value), values=(value,), prompt=self.prompts.resolve(prompt_name))

    def embed(
        self,
        texts: Sequence[str],
        options: EncodeOptions,
        advance: Callable[[int], object] = lambda count: None,
    ) -> NDArray[np.float32]:
        """Embed texts, and return their vectors in order, float32 [n, width].

        Args:
            texts: the texts.
            options: options of the call.
            advance: function that receives the number of texts embedded since its last call.

        Raises:
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and may not be truncated.
        """
        schedule = self.engine.schedule
        if len(texts) <= min(schedule.window, schedule.first_window):  # one window needs no thread
            return self._embed(self._token_ids(texts, 0, options), options, advance)
        vectors = np.empty((len(texts), options.width), np.float32)
        start = 0
        for window, rows in self.windows(texts, options, advance):
            vectors[start : start + len(window)] = rows
            start += len(window)
        return vectors

    def windows(
        self,
        texts: Iterable[str],
        options: EncodeOptions,
        advance: Callable[[int], object] = lambda count: None,
        first: int | None = None,
    ) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        """Yield a window of texts with their vectors, float32 [m, width], while a thread tokenises the next window.

        Args:
            texts: an iterable of texts, read once, one window ahead.
            options: options of the call.
            advance: function that receives the number of texts embedded since its last call.
            first: number of texts of the first window; None for the engine's default.

        Raises:
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and may not be truncated.
        """
        stream = iter(texts)
        with ExitStack() as stack:
            executor = None
            schedule = self.engine.schedule
            size = min(schedule.window, first or schedule.first_window)
            offset, window = 0, list(islice(stream, size))
            ids = self._token_ids(window, offset, options)
            while window:
                offset += len(window)
                following = list(islice(stream, schedule.window)) if len(window) == size else []
                size = schedule.window
                pending = None
                if following:
                    executor = executor or stack.enter_context(ThreadPoolExecutor(1, "whiten-tokenize"))
                    pending = executor.submit(self._token_ids, following, offset, options)
                yield window, self._embed(ids, options, advance)
                ids = pending.result() if pending else []
                window = following

    def _embed(
        self, ids: list[list[int]], options: EncodeOptions, advance: Callable[[int], object]
    ) -> NDArray[np.float32]:
        left_out = 0 if self.prompts.pooled else self.tokenizer.prompt_tokens(options.prompt)
        if len(ids) == 1:
            vectors = np.array(self.engine.run_alone(ids[0], options.values, left_out)[:, : options.width])
            advance(1)
            return unit(vectors) if options.normalize else vectors
        vectors = np.empty((len(ids), options.width), np.float32)
        for group, rows in self.engine.run(ids, options.batch_size, options.values, left_out):
            vectors[group] = rows[:, : options.width]
            advance(len(group))
        return unit(vectors) if options.normalize else vectors

    def _token_ids(self, texts: Sequence[str], offset: int, options: EncodeOptions) -> list[list[int]]:
        limit = self.tokenizer.max_seq_length
        ids = self.tokenizer.tokenize(with_prompt(options.prompt, checked_texts(texts, offset)))
        too_long = [index for index, row in enumerate(ids) if len(row) > limit]
        if too_long and not options.truncate:
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


def _check_nested(manifest: Manifest, width: int) -> None:
    if width < manifest.dimension and not manifest.nested and width not in manifest.matryoshka_dimensions:
        if manifest.matryoshka_dimensions:
            allowed = ", ".join(map(str, manifest.matryoshka_dimensions))
            raise UsageError(f"truncate_dim is {width}; the model was trained for vectors cut to {allowed}")
        method = manifest.whitening.method if manifest.whitening else "none"
        why = "there is no whitening" if method == "none" else f"the whitening is {method}"
        raise UsageError(
            f"truncate_dim is {width}, but {why}, whose first coordinates mean no more than the others; use a "
            "bundle whitened with pca or pca-cor, or leave it out"
        )


@contextmanager
def progress_bar(total: int, show: bool, unit: str = "text") -> Iterator[Callable[[int], object]]:
    """Draw a bar on stderr if `show` is set; the yielded function receives the items done since its last call."""
    if not show:  # a service that never draws a bar need not import one
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit) as bar:
        yield bar.update
