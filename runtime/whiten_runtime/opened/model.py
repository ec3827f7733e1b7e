"""Open the model of a bundle: what it runs on, the tokens of texts, and passages of one: `OpenedModel`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import Bundle
from whiten_runtime.bundle.parity import Probes
from whiten_runtime.bundle.ranges import read_moments
from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import checked_texts
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.passages import PassageEmbedder
from whiten_runtime.inference.tokenizer import Token
from whiten_runtime.opened.opening import OpenedBundle, Opening, encode_options
from whiten_runtime.ort.providers import device_of
from whiten_runtime.ort.session import Placement

_WARM = 512
"""Number of tokens of the long text of a warm-up, at most: the memory of attention grows with its square."""


class OpenedModel(OpenedBundle):
    """An open bundle whose graph reads tokens; `Encoder` embeds texts with it."""

    def _open(self, opening: Opening) -> None:
        def read(bundle: Bundle) -> None:
            self._moments = read_moments(bundle)

        self._bundle, self._embedder = load_bundle(
            opening.path, opening.options, opening.verify_hashes, opening.sha256, read
        )
        self._opening = replace(opening, sha256=self._bundle.sha256)
        self._embedder.max_characters = opening.max_characters or self._embedder.max_characters
        self._tokenizer, self._engine = self._embedder.tokenizer, self._embedder.engine
        self._passages = PassageEmbedder(self.manifest.pooling, self._embedder)
        if opening.cuda_graphs:
            try:
                self._engine.record(self.max_seq_length, self.manifest.precision)
            except BaseException:
                self.close()
                raise
        if opening.verify:
            self._prove()

    def encode_passages(
        self,
        text: str,
        spans: Iterable[Sequence[int]],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: VectorPrecision | None = "float32",
        ranges: ArrayLike | None = None,
    ) -> NDArray[Any]:
        """Embed passages of a text in one pass over the whole text, so that each has been read with what is around it.

        Known as late chunking. A passage's vector is the mean of its tokens and of those that `encode` pools with every
        text (special tokens and the prompt), then what the bundle does after its pooling. A span of the whole text
        gives the vector of `encode`. A token belongs to the passage that has its last character.

        The first call makes a second copy of the model, which the encoder keeps.

        Args:
            text: one text, of at most `max_seq_length` tokens with its prompt.
            spans: (start, end) of each passage in characters of the text, as `text[start:end]`; an array [n, 2], too.
                They may overlap or be empty, and need not cover the text.
            prompt_name: name of a prompt, which is put before the text. This and all that follow are as in `encode`.
            prompt: the prompt itself.
            normalize_embeddings: divide each vector by its L2 norm.
            truncate_dim: keep only the first coordinates.
            precision: type of the numbers.
            ranges: ranges of int8 and uint8.

        Returns:
            float32 [n, k], one row a span, in their order; another type and width with `truncate_dim` and `precision`.

        Raises:
            BundleError: a vector is not finite.
            TextError: `text` is not a str.
            TooLongError: the text has more tokens than the bundle takes; none is cut.
            UsageError: the bundle pools otherwise than by the mean of tokens; a span is not within the text;
                or another argument cannot be used as given.
        """
        settings = encode_options(
            self,
            prompt_name=prompt_name,
            prompt=prompt,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            precision=precision,
            ranges=ranges,
        )
        return self._passages.embed(text, spans, settings)

    def token_count(self, texts: str | Iterable[str]) -> int | list[int]:
        """Return the number of tokens of a text, or of each text, special tokens included, before truncation.

        The whole text is tokenised, however long it is: bound its characters first where strangers send it.
        """
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
        return self._engine.run, [self._tokenizer.cut(row) for row in self._tokenizer.tokenize(probes.texts)]

    def _run_batch(self, items: Any) -> NDArray[np.float32]:
        return self._engine.run_batch(items)

    def warmup(self) -> None:
        """Run a short and a long text, so that the next call does not pay first-time costs."""
        pad = self._bundle.manifest.pad_token_id
        for length in (1, min(self.max_seq_length, _WARM)):
            self._engine.run([[pad] * length])

    @property
    def max_seq_length(self) -> int:
        """Return the maximum number of tokens of a text, special tokens included."""
        return self._bundle.manifest.max_seq_length

    def get_max_seq_length(self) -> int:
        """Return the maximum number of tokens of a text, as sentence-transformers calls it; `max_seq_length` here."""
        return self.max_seq_length

    @property
    def prompts(self) -> dict[str, str]:
        return dict(self._bundle.manifest.prompts)

    @property
    def default_prompt_name(self) -> str | None:
        """Return the name of the prompt that `encode` applies if none is asked for, or None."""
        return self._bundle.manifest.default_prompt_name

    @property
    def providers(self) -> list[str]:
        return self._engine.providers

    @property
    def device(self) -> str:
        """Return the device of the first provider: "cpu", "cuda:N" or "tensorrt:N", else its name."""
        return device_of(self._opening.options.providers[0])

    @property
    def placement(self) -> Placement:
        return self._engine.placement

    @property
    def truncated(self) -> int:
        """Return the number of texts that were truncated to `max_seq_length` since the encoder was created."""
        return self._embedder.truncated

    def close(self) -> None:
        self._embedder.close()
        self._passages.close()


def embedder_of(encoder: OpenedModel) -> Embedder:
    """Return what tokenises and runs the texts of an encoder, for packages of whiten that do it step by step."""
    return encoder._embedder
