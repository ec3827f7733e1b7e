"""Embed texts: check the arguments of a call, tokenise windows of texts, and return their vectors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Literal, TypedDict

import numpy as np
from msgspec import UnsetType
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.graph_names import OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.checks import checked_texts, one_of, whole_number
from whiten_runtime.errors import TooLongError, UsageError
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_runtime.inference.prompts import Prompts, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.inference.vectors import check_given, unit
from whiten_runtime.ort.process import ForkSafeLock

Texts = str | Iterable[str]

SENTENCE_EMBEDDING: Literal["sentence_embedding"] = "sentence_embedding"


class EncodeArguments(TypedDict, total=False):
    """Lists the arguments of `Encoder.encode` that do not change the type of its result, for type checkers."""

    sentences: Texts
    inputs: Texts
    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | None
    output_value: Literal["sentence_embedding"]
    device: object
    normalize_embeddings: bool
    truncate_dim: int | None
    truncate: bool
    max_characters: int | None
    ranges: ArrayLike | None
    pool: None
    chunk_size: int | None


def given_texts(texts: Texts | UnsetType, sentences: Texts | UnsetType, inputs: Texts | UnsetType) -> Texts:
    """Return the texts of a call, by whichever of their three names they were given."""
    named = {"texts": texts, "sentences": sentences, "inputs": inputs}
    given = {name: value for name, value in named.items() if not isinstance(value, UnsetType)}
    if not given:
        raise UsageError("there are no texts; give a str or an iterable of str as texts, sentences or inputs")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} were both given, but are names of the same argument; leave one out")
    return next(iter(given.values()))


def check_arguments(output_value: object, device: object, own_device: str, pool: object, chunk_size: Any) -> None:
    """Check arguments by which sentence-transformers chooses other outputs, devices and processes."""
    if output_value in ("token_embeddings", None):
        raise UsageError(
            f"output_value is {output_value!r}, but the graph of a bundle gives finished vectors alone, none of tokens"
            f"; use '{SENTENCE_EMBEDDING}'"
        )
    one_of("output_value", output_value, [SENTENCE_EMBEDDING])
    if device is not None and str(device) not in (own_device, own_device.removesuffix(":0")):
        raise UsageError(
            f"device is {str(device)!r}, but this encoder is on {own_device!r}, as chosen when it was opened; leave it "
            "out, or open another with Encoder(path, device=...)"
        )
    if pool is not None:
        raise UsageError(
            "pool was given, but an encoder uses all processors by itself; leave it out, or pass the encoder to "
            "processes of your own, since it can be pickled"
        )
    if chunk_size is not None:
        whole_number("chunk_size", chunk_size, 1)


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
            width = whole_number("truncate_dim", truncate_dim, 1, width, ", the bundle's dimension")
            _check_nested(manifest, width)
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
                yield window, self._embed(ids, offset - len(window), options, advance)
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
        left_out = self._left_out(options)
        if len(ids) == 1:
            vectors = np.array(self.engine.run_alone(ids[0], options.values, left_out)[:, : options.width])
            advance(1)
        else:
            vectors = np.empty((len(ids), options.width), np.float32)
            for group, rows in self.engine.run(ids, options.batch_size, options.values, left_out):
                vectors[group] = rows[:, : options.width]
                advance(len(group))
        if options.finite:
            check_given(vectors, "texts", offset)
        return unit(vectors) if options.normalize else vectors

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
