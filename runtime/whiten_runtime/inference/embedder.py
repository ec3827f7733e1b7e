"""Embed texts in three steps, the same for every caller: tokenise, run, finish."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.errors import NoVectorError, TooLongError, checked_texts
from whiten_runtime.inference.batching import WINDOW_CHARACTERS
from whiten_runtime.inference.engine import Advance, Engine, TokenizedTexts, no_progress
from whiten_runtime.inference.options import EncodeOptions, Prompts, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.process import ForkSafeLock, thread_group

_NO_PROMPTS = Prompts()

TOKEN_CHARACTERS = 250
"""Characters for each token of the longest text, beyond which a text is cut, or refused, before it is tokenised.

No text of words comes near: English has 4 to 5 a token. It is what text-embeddings-inference refuses.
"""


class Count:
    def __init__(self) -> None:
        self.number, self.lock = 0, ForkSafeLock()

    def add(self, number: int) -> None:
        with self.lock:
            self.number += number


@dataclass(frozen=True)
class DifferentTexts:
    texts: list[str]
    firsts: list[int]  # index in the call of the first text that is equal to each
    places: list[int]  # index in `texts` of each text of the call

    @classmethod
    def of(cls, texts: Sequence[str]) -> "DifferentTexts | None":
        """Return the different ones of the texts of a call; None if they all are."""
        if len(set(texts)) == len(texts):
            return None
        firsts: dict[str, int] = {}
        for index, text in enumerate(texts):
            firsts.setdefault(text, index)
        places = {text: place for place, text in enumerate(firsts)}
        return cls(list(firsts), list(firsts.values()), [places[text] for text in texts])

    def count(self, some: Iterable[int]) -> int:
        chosen = set(some)
        return sum(place in chosen for place in self.places)


class Embedder:
    """Embeds texts with a tokenizer and an engine. Thread-safe, and usable in forked children.

    `tokenize`, `run` and `EncodeOptions.finish` are the steps. `embed` and `windows` do all three, for the texts of one
    call; a server tokenises and finishes each request, and runs batches of several.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Engine,
        output: str = OUTPUT,
        prompts: Prompts = _NO_PROMPTS,
        max_characters: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self._output, self._prompts = output, prompts
        self._truncated = Count()
        self.max_characters = max_characters or TOKEN_CHARACTERS * tokenizer.max_seq_length

    def shortened(self, max_seq_length: int) -> "Embedder":
        """Return an embedder that cuts texts to fewer tokens; all else is shared, the number of texts cut too."""
        other = copy(self)
        other.tokenizer = self.tokenizer.shortened(max_seq_length)
        return other

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "Embedder":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def truncated(self) -> int:
        return self._truncated.number

    @property
    def width(self) -> int:
        return self.engine.width_of(self._output)

    @property
    def options(self) -> EncodeOptions:
        """Return the options of a call that has none of its own: the whole output, with the default prompt."""
        prompts = self._prompts
        return EncodeOptions(prompt=prompts.resolve(), include_prompt=prompts.pooled, outputs=(self._output,))

    def tokenize(
        self, texts: Sequence[str], options: EncodeOptions, start: int = 0, different: DifferentTexts | None = None
    ) -> TokenizedTexts:
        """Put the prompt to texts, which are checked, and return their token ids, cut to the length that is taken.

        `start` is the index of the first text in its call, for errors; or among the different texts of the call.
        """
        self.engine.check_open()
        limit = self.tokenizer.max_seq_length
        indices = range(start, start + len(texts)) if different is None else different.firsts[start:]
        read, cut = self._bounded(texts, indices, options)
        ids = list[list[int]]()
        for rows in self.tokenizer.parts(with_prompt(options.prompt, read)):
            for place in [place for place, row in enumerate(rows) if len(row) > limit]:
                index = len(ids) + place
                if not options.truncate:
                    advice = "shorten it, or pass truncate=True to cut it"
                    raise TooLongError(len(rows[place]), limit, "tokens", advice, indices[index])
                cut.add(index)
                rows[place] = self.tokenizer.cut(rows[place])
            ids += rows
        truncated = len(cut) if different is None or not cut else different.count(start + index for index in cut)
        if truncated:
            self._truncated.add(truncated)
        prompt_tokens = 0 if options.include_prompt else self.tokenizer.prompt_tokens(options.prompt)
        return TokenizedTexts(ids, prompt_tokens, truncated)

    def run(self, texts: TokenizedTexts, options: EncodeOptions, advance: Advance = no_progress) -> NDArray[np.float32]:
        """Return the vectors that the graph gives for texts, in their order, float32 [n, k]."""
        return self.engine.run(texts.ids, texts.prompt_tokens, options.outputs, options.batch_size, advance)

    def embed_once(self, texts: Sequence[str], options: EncodeOptions, advance: Advance = no_progress) -> NDArray[Any]:
        """Return what `embed` returns; equal texts are computed once."""
        different = DifferentTexts.of(texts)
        if different is None:
            return self.embed(texts, options, advance)
        try:
            vectors = self.embed(different.texts, options, advance, different)
        except NoVectorError as error:
            raise error.placed(different.places) from None
        advance(len(texts) - len(vectors))
        return vectors[different.places]

    def embed(
        self,
        texts: Sequence[str],
        options: EncodeOptions | None = None,
        advance: Advance = no_progress,
        different: DifferentTexts | None = None,
    ) -> NDArray[Any]:
        """Return the finished vectors of texts, which are checked, in their order, [n, width]."""
        settings, schedule = options or self.options, self.engine.schedule
        window = min(schedule.window, schedule.first_window)
        if len(texts) <= window and sum(map(len, texts)) <= WINDOW_CHARACTERS:  # one window needs no thread
            return self._finished(self.tokenize(texts, settings, 0, different), settings, 0, advance)
        vectors, start = None, 0
        tokenize = partial(self.tokenize, different=different)
        for _, rows in self._windows(texts, tokenize, settings, advance):
            if vectors is None:
                vectors = np.empty((len(texts), rows.shape[1]), rows.dtype)
            vectors[start : start + len(rows)] = rows
            start += len(rows)
        assert vectors is not None  # there is a text
        return vectors

    def windows(
        self,
        texts: Iterable[str],
        options: EncodeOptions | None = None,
        advance: Advance = no_progress,
        first: int | None = None,
    ) -> Iterator[tuple[list[str], NDArray[Any]]]:
        """Yield a window of texts with their finished vectors, [m, width], while a thread tokenises the next window.

        A window has up to 4,096 texts, or as many as have `WINDOW_CHARACTERS`.

        The texts are read and checked as they come; `first` bounds the number of those of the first window.
        """

        def check_and_tokenize(window: Sequence[str], options: EncodeOptions, start: int) -> TokenizedTexts:
            return self.tokenize(checked_texts(window, start), options, start)

        return self._windows(texts, check_and_tokenize, options or self.options, advance, first)

    def _windows(
        self,
        texts: Iterable[str],
        tokenize: Callable[[Sequence[str], EncodeOptions, int], TokenizedTexts],
        options: EncodeOptions,
        advance: Advance,
        first: int | None = None,
    ) -> Iterator[tuple[list[str], NDArray[Any]]]:
        stream, most = iter(texts), self.engine.schedule.window
        start, window = 0, _next_window(stream, min(most, first or self.engine.schedule.first_window))
        tokenized = tokenize(window, options, 0)
        while window:
            following = _next_window(stream, most)
            with thread_group("whiten-tokenize") as in_thread:
                end = start + len(window)
                pending = in_thread(partial(tokenize, following, options, end)) if following else None
                try:
                    vectors = self._finished(tokenized, options, start, advance)
                except NoVectorError as error:
                    error.text = window[error.index - start]
                    raise
                yield window, vectors
            if pending is None:
                return
            start, window, tokenized = end, following, pending.result()

    def _finished(self, texts: TokenizedTexts, options: EncodeOptions, start: int, advance: Advance) -> NDArray[Any]:
        try:
            return options.finish(self.run(texts, options, advance))
        except NoVectorError as error:
            raise error.moved(start) from None

    def _bounded(
        self, texts: Sequence[str], indices: Sequence[int], options: EncodeOptions
    ) -> tuple[Sequence[str], set[int]]:
        """Cut texts that have too many characters; return all texts, and the places of those that were cut."""
        limit = options.max_characters or self.max_characters
        if max(map(len, texts), default=0) <= limit:
            return texts, set()
        too_long = {index for index, text in enumerate(texts) if len(text) > limit}
        if not options.truncate:
            index = min(too_long)
            advice = "shorten it, pass a larger max_characters, or truncate=True to cut it"
            raise TooLongError(len(texts[index]), limit, "characters", advice, indices[index])
        part = self.part_read(limit)
        return [text[part] if index in too_long else text for index, text in enumerate(texts)], too_long

    def part_read(self, characters: int) -> slice:
        return slice(-characters, None) if self.tokenizer.truncation_side == "left" else slice(characters)


def _next_window(stream: Iterator[str], most: int) -> list[str]:
    """Return the next texts, at most so many: the last one brings them to `WINDOW_CHARACTERS`."""
    window, characters = list[str](), 0
    for text in stream:
        window.append(text)
        characters += len(text) if isinstance(text, str) else 0  # what is no text is refused later
        if len(window) == most or characters >= WINDOW_CHARACTERS:
            break
    return window


@contextmanager
def progress_bar(total: int, show: bool, unit: str = "text") -> Iterator[Callable[[int], object]]:
    """Draw a bar on stderr if `show` is set; the yielded function receives the items done since its last call."""
    if not show:  # a service that never draws a bar need not import one
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit) as bar:
        yield bar.update
