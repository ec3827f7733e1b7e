"""Check the options of a call, put prompts before texts, tokenise windows of texts, and return their vectors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import NoVectorError, RunError, TooLongError, UsageError, checked_texts, whole_number
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.inference.vectors import check_given, unit
from whiten_runtime.ort.process import ForkSafeLock

TEXT = "{text}"
"""Place of the text in a prompt that goes around it, such as AnglE's 'Summarize sentence "{text}" in one word:"'."""

QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
"""Names of prompts for queries and documents, in order of preference, as in sentence-transformers."""


@dataclass(frozen=True)
class Prompts:
    """Holds the prompts of a bundle."""

    texts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default: str | None = None  # name of the prompt that texts get if none is asked for; None for no prompt
    pooled: bool = True  # whether the tokens of a prompt take part in the pooling

    @classmethod
    def of(cls, manifest: Manifest) -> "Prompts":
        """Return the prompts of a bundle."""
        return cls(manifest.prompts, manifest.default_prompt_name, manifest.include_prompt)

    def resolve(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Return the prompt to apply; an empty string for none."""
        if prompt is not None and prompt_name is not None:
            raise UsageError(f"prompt and prompt_name '{prompt_name}' were both given; leave one out")
        if prompt is None:
            name = self.default if prompt_name is None else prompt_name
            if name is not None and not (isinstance(name, str) and name in self.texts):
                known = ", ".join(f"'{one}'" for one in self.texts) or "none"
                raise UsageError(f"prompt_name is '{name}', but the bundle's prompts are: {known}; or pass prompt=TEXT")
            prompt = "" if name is None else self.texts[name]
        if not isinstance(prompt, str):
            raise UsageError(f"prompt is {prompt!r}; wanted a str")
        if not self.pooled and TEXT in prompt:
            raise UsageError(f"prompt goes around the text ({TEXT}), but this bundle leaves prompts out of its pooling")
        return prompt

    def for_task(self, *names: str) -> str:
        """Return the first prompt of these names that the bundle has.

        As in sentence-transformers, the default prompt does not take its place; but a default template does, because
        every text of such a model stands in a template.
        """
        named = next((name for name in names if name in self.texts), None)
        if named is not None:
            return self.resolve(named)
        default = self.resolve()
        return default if TEXT in default else ""


def with_prompt(prompt: str, texts: Sequence[str]) -> Sequence[str]:
    """Return texts with a prompt before each, or around each if it contains `{text}`."""
    if not prompt:
        return texts
    if TEXT in prompt:
        return [prompt.replace(TEXT, text) for text in texts]
    return [prompt + text for text in texts]


TOKEN_CHARACTERS = 250
"""Characters for each token of the longest text, beyond which a text is cut, or refused, before it is tokenised.

No text of words comes near: English has 4 to 5 a token. It is what text-embeddings-inference refuses.
"""


@dataclass(frozen=True)
class EncodeOptions:
    """Holds the options of one call."""

    width: int  # number of leading coordinates to keep
    batch_size: int | None = None  # maximum number of texts per batch, or None
    normalize: bool = False  # divide each vector by its L2 norm
    truncate: bool = True  # truncate texts that are too long instead of raising
    values: tuple[str, ...] = (OUTPUT,)  # outputs of the graph, concatenated
    prompt: str = ""  # text that is put before each text, or around it; see `prompts.with_prompt`
    # characters of a text beyond which it is cut, or refused; None for the embedder's
    max_characters: int | None = None
    finite: bool = False  # refuse vectors that are not finite, with the text's index

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        batch_size: int | None = None,
        normalize: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
        prompt: str = "",
        max_characters: int | None = None,
    ) -> "EncodeOptions":
        """Check a caller's options against a bundle."""
        width = manifest.dimension
        if truncate_dim is not None:
            width = leading_width(manifest, truncate_dim)
            normalize = normalize or manifest.normalize
        rows = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        longest = None if max_characters is None else whole_number("max_characters", max_characters, 1)
        return cls(width, rows, normalize, truncate, prompt=prompt, max_characters=longest, finite=True)


class Embedder:
    """Embeds texts with a tokenizer and an engine. Thread-safe, and usable in forked children."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine, prompts: Prompts | None = None) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.prompts = prompts or Prompts()
        self.truncated = 0
        self.max_characters = TOKEN_CHARACTERS * tokenizer.max_seq_length
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

    def options(
        self,
        manifest: Manifest,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
        max_characters: int | None = None,
    ) -> EncodeOptions:
        """Check the options of a call, which are named as in `Encoder.encode`."""
        prompt = self.prompts.resolve(prompt_name, prompt)
        self.engine.check_open()
        return EncodeOptions.of(
            manifest, batch_size, normalize_embeddings, truncate_dim, truncate, prompt, max_characters
        )

    def embed_given(
        self, texts: str | Iterable[str], options: EncodeOptions, show_progress_bar: bool = False
    ) -> NDArray[np.float32]:
        """Embed one text or several, as a caller gives them, perhaps with a bar: float32 [n, width]."""
        items = [texts] if isinstance(texts, str) else checked_texts(texts)
        if not show_progress_bar:
            return self.embed(items, options)
        with progress_bar(len(items), True) as advance:
            return self.embed(items, options, advance)

    def embed(
        self,
        texts: Sequence[str],
        options: EncodeOptions,
        advance: Callable[[int], object] = lambda count: None,
    ) -> NDArray[np.float32]:
        """Embed texts, and return their vectors in order, float32 [n, width]."""
        schedule = self.engine.schedule
        if len(texts) <= min(schedule.window, schedule.first_window):  # one window needs no thread
            return self._embed(self._token_ids(texts, 0, options)[0], 0, options, advance)
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
        """Yield a window of texts with their vectors, float32 [m, width], while a thread tokenises the next window."""
        stream = iter(texts)
        with ExitStack() as stack:
            executor = None
            schedule = self.engine.schedule
            size = min(schedule.window, first or schedule.first_window)
            offset, window = 0, list(islice(stream, size))
            ids, _ = self._token_ids(window, offset, options)
            while window:
                offset += len(window)
                following = list(islice(stream, schedule.window)) if len(window) == size else []
                size = schedule.window
                pending = None
                if following:
                    executor = executor or stack.enter_context(ThreadPoolExecutor(1, "whiten-tokenize"))
                    pending = executor.submit(self._token_ids, following, offset, options)
                start = offset - len(window)
                try:
                    vectors = self._embed(ids, start, options, advance)
                except NoVectorError as error:
                    error.text = window[error.index - start]
                    raise
                yield window, vectors
                ids = pending.result()[0] if pending else []
                window = following

    def tokenized(self, texts: Sequence[str], options: EncodeOptions) -> TokenizedTexts:
        """Tokenise texts as `embed` does, for batches that the caller plans."""
        ids, truncated = self._token_ids(texts, 0, options)
        return TokenizedTexts(ids, self._left_out(options), truncated)

    def _left_out(self, options: EncodeOptions) -> int:
        return 0 if self.prompts.pooled else self.tokenizer.prompt_tokens(options.prompt)

    def _embed(
        self, ids: list[list[int]], offset: int, options: EncodeOptions, advance: Callable[[int], object]
    ) -> NDArray[np.float32]:
        try:
            vectors = self._vectors(ids, options, advance)
            if options.finite:
                check_given(vectors, "texts")
        except NoVectorError as error:
            raise error.moved(offset) from None
        return unit(vectors) if options.normalize else vectors

    def _vectors(
        self, ids: list[list[int]], options: EncodeOptions, advance: Callable[[int], object]
    ) -> NDArray[np.float32]:
        left_out = self._left_out(options)
        if len(ids) != 1:
            vectors = np.empty((len(ids), options.width), np.float32)
            for group, rows in self.engine.run(ids, options.batch_size, options.values, left_out):
                vectors[group] = rows[:, : options.width]
                advance(len(group))
            return vectors
        try:
            rows = self.engine.run_batch(self.engine.feed(ids, left_out), options.values)
        except RunError as error:
            raise self.engine.failure(error, self.engine.run_batch, options.values) from None
        advance(1)
        return np.array(rows[:, : options.width])

    def _token_ids(self, texts: Sequence[str], offset: int, options: EncodeOptions) -> tuple[list[list[int]], int]:
        """Return the token ids of texts, cut, and the number of texts that were cut."""
        limit = self.tokenizer.max_seq_length
        kept, shortened = self._bounded(checked_texts(texts, offset), offset, options)
        prompted = with_prompt(options.prompt, kept)
        ids = self.tokenizer.tokenize(prompted)
        too_long = [index for index, row in enumerate(ids) if len(row) > limit]
        if too_long and not options.truncate:
            index = too_long[0]
            raise TooLongError(
                f"texts[{offset + index}] has {len(ids[index])} tokens, but the bundle takes {limit}; "
                "shorten it, or pass truncate=True to cut it"
            )
        for index in too_long:
            ids[index] = self.tokenizer.cut(ids[index])
        cut = shortened.union(too_long)
        if cut:
            with self._count_lock:
                self.truncated += len(cut)
        return ids, len(cut)

    def _bounded(self, texts: list[str], offset: int, options: EncodeOptions) -> tuple[list[str], set[int]]:
        """Cut texts that have too many characters; return all texts, and the indices of those that were cut."""
        limit = options.max_characters or self.max_characters
        if max(map(len, texts), default=0) <= limit:
            return texts, set()
        too_long = {index for index, text in enumerate(texts) if len(text) > limit}
        if not options.truncate:
            index = min(too_long)
            raise TooLongError(
                f"texts[{offset + index}] has {len(texts[index])} characters, but at most {limit} are read; "
                "shorten it, pass a larger max_characters, or truncate=True to cut it"
            )
        part = slice(-limit, None) if self.tokenizer.truncation_side == "left" else slice(limit)
        return [text[part] if index in too_long else text for index, text in enumerate(texts)], too_long


def leading_width(manifest: Manifest, value: SupportsIndex, name: str = "truncate_dim") -> int:
    """Return how many leading coordinates are kept of a bundle's vectors.

    Raises:
        UsageError: the vectors have fewer coordinates, or their first ones mean no more than the others.
    """
    width = whole_number(name, value, 1, manifest.dimension, ", the bundle's dimension")
    if width < manifest.dimension and not manifest.nested and width not in manifest.matryoshka_dimensions:
        if manifest.matryoshka_dimensions:
            allowed = ", ".join(map(str, manifest.matryoshka_dimensions))
            raise UsageError(f"{name} is {width}; the model was trained for vectors cut to {allowed}")
        if (alignment := manifest.whitening.alignment if manifest.whitening else None) is not None:
            raise UsageError(
                f"{name} is {width}, but the whitening is turned onto that of space {alignment.space}, which "
                "mixes the coordinates; use a bundle that was fitted with pca or pca-cor and without "
                "--align-to, or leave it out"
            )
        method = manifest.whitening.method if manifest.whitening else "none"
        why = "there is no whitening" if method == "none" else f"the whitening is {method}"
        declared = f"--matryoshka {width} if the model was trained for it, or with " if not manifest.whitening else ""
        raise UsageError(
            f"{name} is {width}, but {why}, whose first coordinates mean no more than the others; export with "
            f"{declared}--whitening pca or pca-cor, or leave {name} out"
        )
    return width


@contextmanager
def progress_bar(total: int, show: bool, unit: str = "text") -> Iterator[Callable[[int], object]]:
    """Draw a bar on stderr if `show` is set; the yielded function receives the items done since its last call."""
    if not show:  # a service that never draws a bar need not import one
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit) as bar:
        yield bar.update
