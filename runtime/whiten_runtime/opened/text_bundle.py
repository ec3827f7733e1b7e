"""Hold what an encoder does besides `encode`: streams, two vectors a text, the proof, and what the bundle says."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.parity import Probes
from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import TextError, UsageError, as_iterable, checked_texts, whole_number
from whiten_runtime.inference.engine import TokenizedTexts, TokenRunner
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.tokenizer import Token
from whiten_runtime.inference.vectors import unit
from whiten_runtime.opened.opening import OpenedBundle, Opening
from whiten_runtime.ort.providers import device_of
from whiten_runtime.ort.session import Placement

_WARM = 512
"""Number of tokens of the long text of a warm-up, at most: the memory of attention grows with its square."""


class TextBundle(OpenedBundle):
    """Holds an open bundle that takes texts."""

    def _open(self, opening: Opening) -> None:
        self._opening, longest = opening, opening.max_characters
        if longest is not None:
            longest = whole_number("max_characters", longest, 1)
        self._bundle, self._embedder = load_bundle(opening.path, opening.options, opening.verify_hashes)
        self._embedder.max_characters = longest or self._embedder.max_characters
        self._tokenizer, self._engine = self._embedder.tokenizer, self._embedder.engine
        if opening.cuda_graphs:
            try:
                self._engine.record(self.max_seq_length, self.manifest.precision)
            except BaseException:
                self.close()
                raise
        if opening.verify:
            self._prove()

    def encode_both(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        truncate: bool = True,
        max_characters: int | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed texts, and return their vectors after and before whitening, from one run of the graph.

        Args:
            texts: one text, or several.
            prompt_name: name of a prompt, as in `encode`.
            prompt: the prompt itself, as in `encode`.
            batch_size: maximum number of texts per batch.
            truncate: truncate long texts instead of raising.
            max_characters: characters beyond which a text is cut before it is tokenised, as in `encode`.

        Returns:
            The vectors that `encode` returns, float32 [n, k], and the mean over the chosen layers before whitening and
            normalisation, float32 [n, d]; [k] and [d] for a single string.

        Raises:
            UsageError: the bundle was not exported with `--outputs both`, or `batch_size` is out of range.
            TextError: as in `encode`, and TooLongError and BundleError too.
        """
        if self.manifest.outputs != "both":
            raise UsageError("this bundle gives one vector a text; export it with --outputs both")
        plain = self._embedder.options(
            self.manifest, prompt_name, prompt, batch_size=batch_size, truncate=truncate, max_characters=max_characters
        )
        values = (OUTPUT, UNWHITENED_OUTPUT)
        options = replace(plain, width=self._engine.width_of(*values), values=values)
        white, raw = np.split(self._embedder.embed_given(texts, options), [self.dimension], axis=1)
        return (white[0], raw[0]) if isinstance(texts, str) else (white, raw)

    def encode_iter(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
        max_characters: int | None = None,
        precision: VectorPrecision = "float32",
        ranges: ArrayLike | None = None,
    ) -> Iterator[NDArray[Any]]:
        """Embed a stream of texts of any length in bounded memory.

        Reads some thousands of texts ahead, to sort them by length and to tokenise the next ones meanwhile.

        Args:
            texts: an iterable of texts, read once.
            prompt_name: name of a prompt, as in `encode`.
            prompt: the prompt itself, as in `encode`.
            batch_size: maximum number of texts per batch.
            normalize_embeddings: divide each vector by its L2 norm.
            truncate_dim: keep only the first coordinates.
            truncate: truncate long texts instead of raising.
            max_characters: characters beyond which a text is cut before it is tokenised, as in `encode`.
            precision: precision of the numbers, as in `encode`.
            ranges: ranges of int8 and uint8, as in `encode`.

        Yields:
            float32 [k] for each text, in order; with another `precision`, as in `encode`.

        Raises:
            TextError: an item of `texts` is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            BundleError: the graph gives a text a vector that is not finite; the message has its index.
            UsageError: `batch_size`, `truncate_dim` or `max_characters` is out of range, there is no prompt of this
                name, or `precision` or `ranges` cannot be used.
        """
        if isinstance(texts, str):
            raise TextError("texts is a single str; wanted an iterable of str, such as a list of it")
        windows = self._windows(
            texts,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            truncate=truncate,
            max_characters=max_characters,
            precision=precision,
            ranges=ranges,
        )
        return (row for _, rows in windows for row in rows)

    def _windows(
        self,
        texts: Iterable[str],
        *,
        precision: VectorPrecision = "float32",
        ranges: ArrayLike | None = None,
        **options: Any,
    ) -> Iterator[tuple[list[str], NDArray[Any]]]:
        """Return an iterator over windows of texts, each with its vectors [m, k]; options as in `encode_iter`."""
        chosen = self._embedder.options(self.manifest, **options)
        quantizer = self._quantizer(precision, ranges, chosen)
        windows = self._embedder.windows(as_iterable(texts), chosen)
        return ((found, rows if quantizer is None else quantizer(rows)) for found, rows in windows)

    def tokenized(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
    ) -> TokenizedTexts:
        """Tokenise texts for batches that the caller plans, with `token_runner`.

        Args:
            texts: one text, or several.
            prompt_name: name of a prompt, as in `encode`.
            prompt: the prompt itself, as in `encode`.
            truncate: truncate long texts instead of raising.

        Raises:
            TextError: as in `encode`, and TooLongError and UsageError too.
        """
        options = self._embedder.options(self.manifest, prompt_name, prompt, truncate=truncate)
        return self._embedder.tokenized([texts] if isinstance(texts, str) else checked_texts(texts), options)

    def token_runner(self) -> TokenRunner:
        """Return what computes batches that the caller plans: token ids in, vectors as the graph gives them out."""
        self._engine.check_open()
        return TokenRunner(self._engine)

    def finisher(
        self,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: VectorPrecision = "float32",
        ranges: ArrayLike | None = None,
    ) -> Callable[[NDArray[np.float32]], NDArray[Any]]:
        """Return a function that makes the vectors of `encode` of those of the graph, float32 [n, dimension].

        The function takes finite vectors; `TokenRunner.run` does not check them.

        Args:
            normalize_embeddings: divide each vector by its L2 norm, as in `encode`.
            truncate_dim: number of leading coordinates to keep, as in `encode`.
            precision: precision of the numbers, as in `encode`.
            ranges: ranges of int8 and uint8, as in `encode`.

        Raises:
            UsageError: an option cannot be used, as in `encode`.
        """
        options = self._embedder.options(
            self.manifest, prompt="", normalize_embeddings=normalize_embeddings, truncate_dim=truncate_dim
        )
        quantizer = self._quantizer(precision, ranges, options)

        def finish(vectors: NDArray[np.float32]) -> NDArray[Any]:
            kept = np.ascontiguousarray(vectors[:, : options.width])
            found = unit(kept) if options.normalize else kept
            return found if quantizer is None else quantizer(found)

        return finish

    def token_count(self, texts: str | Iterable[str]) -> int | list[int]:
        """Return the number of tokens of a text, or of each text, special tokens included, before truncation."""
        if isinstance(texts, str):
            return len(self._tokenizer.tokenize([texts])[0])
        return [len(ids) for ids in self._tokenizer.tokenize(checked_texts(texts))]

    def tokens(self, text: str, *, special: bool = True) -> list[Token]:
        """Return the tokens of a text, with their places in it, before truncation.

        Args:
            text: one text, without a prompt unless it holds it.
            special: with the special tokens before and after it.

        Raises:
            BundleError: the tokenizer fails on the text.
        """
        return self._tokenizer.tokens(text, special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids of this bundle's tokenizer, as far as they still hold it.

        Args:
            ids: token ids.
            skip_special: leave out special tokens.

        Raises:
            UsageError: an id is not in the vocabulary.
        """
        return self._tokenizer.decode(ids, skip_special)

    def _probed(self, probes: Probes) -> tuple[Callable[[Any], NDArray[np.float32]], Any]:
        return self._engine.vectors, [self._tokenizer.cut(row) for row in self._tokenizer.tokenize(probes.texts)]

    def warmup(self) -> None:
        """Run a short and a long text, so that the next call does not pay first-time costs."""
        pad = self._bundle.manifest.pad_token_id
        for length in (1, min(self.max_seq_length, _WARM)):
            for _ in self._engine.run([[pad] * length]):
                pass

    @property
    def max_seq_length(self) -> int:
        """Return the maximum number of tokens of a text, special tokens included."""
        return self._bundle.manifest.max_seq_length

    def get_max_seq_length(self) -> int:
        """Return the maximum number of tokens of a text, as sentence-transformers calls it; `max_seq_length` here."""
        return self.max_seq_length

    @property
    def prompts(self) -> dict[str, str]:
        """Return the bundle's prompts by name."""
        return dict(self._bundle.manifest.prompts)

    @property
    def default_prompt_name(self) -> str | None:
        """Return the name of the prompt that `encode` applies if none is asked for, or None."""
        return self._bundle.manifest.default_prompt_name

    @property
    def providers(self) -> list[str]:
        """Return the active execution providers, in order of preference."""
        return self._engine.providers

    @property
    def device(self) -> str:
        """Return the device of the first provider: "cpu", "cuda:N", "openvino" or "openvino:bf16", else its name."""
        return device_of(self._opening.options.providers[0])

    @property
    def placement(self) -> Placement:
        """Return the number of nodes that onnxruntime put on each provider."""
        return self._engine.placement

    @property
    def truncated(self) -> int:
        """Return the number of texts that were truncated to `max_seq_length` since the encoder was created."""
        return self._embedder.truncated

    def close(self) -> None:
        """Free the model. The encoder cannot be used afterwards."""
        self._embedder.close()
