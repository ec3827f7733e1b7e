"""Embed texts with a bundle: `Encoder`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import Bundle
from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_runtime.bundle.parity import Probes
from whiten_runtime.errors import TextError, UsageError, as_iterable, check_flags, checked_texts, whole_number
from whiten_runtime.hub import locate_bundle
from whiten_runtime.inference.embedder import Embedder, progress_bar
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.options import EncodeArguments, EncodeOptions, Prompts, Task, check_route
from whiten_runtime.inference.passages import PassageEmbedder
from whiten_runtime.inference.tokenizer import Token
from whiten_runtime.inference.vectors import as_tensors, read_moments
from whiten_runtime.opened_bundle import OpenedBundle, Opening, encode_options
from whiten_runtime.ort.session import (
    CUDA_PROVIDER,
    Placement,
    Provider,
    SessionOptions,
    device_of,
    provider_name,
    providers_for,
)

_WARM = 512
"""Number of tokens of the long text of a warm-up, at most: the memory of attention grows with its square."""


Texts = str | Iterable[str]


class Encoder(OpenedBundle):
    """Embeds texts with a bundle. Thread-safe, picklable, usable in forked children.

    Uses the network only to download a bundle that is named by its repository and is not in the hub's cache.

    Args:
        path: a bundle directory, as written by whiten-export, or a repository of the model hub: "org/name",
            "hf://org/name" or "hf://org/name@revision". A directory that exists goes before a repository of its name.
        providers: onnxruntime execution providers, names or (name, options) pairs, in order of preference; None for the
            environment's WHITEN_DEVICE, else the CPU. All of them must be active, and run all matrix products: none is
            left to the CPU unless it is named.
        threads: threads per call; None for the environment's WHITEN_THREADS, else all the CPUs this process may use
            (affinity and cgroup quota).
        device: "cpu", "cuda", "cuda:N" or "tensorrt", in place of `providers`.
        verify_hashes: compare each file's SHA-256 with the manifest before using it.
        verify: prove, before anything is embedded, that this machine computes what the reference computed at export:
            embed the bundle's probes and keep the parity gate, as `whiten verify` does. It takes some seconds with a
            large model; False for no proof.
        spinning: let threads spin while one operator waits for the next, which is faster; False where other programs
            need the processor more. Threads never spin between calls.
        cuda_graphs: on CUDA, record the kernels for a single text of up to 128 tokens, and launch them as one CUDA
            graph for single-text requests. This needs a second copy of the weights on the GPU (`gpu_mem_limit` applies
            to each copy) and a moment now, in which nothing else should use the GPU.
        revision: branch, tag or commit of the repository; None for what the cache has of its main branch, else for the
            newest.
        max_characters: characters of a text beyond which it is cut before it is tokenised, or refused with
            `truncate=False`; None for what the model's authors say, else for 250 for each token of `max_seq_length`.
            Texts of words have more tokens than the model takes long before, and their vectors do not depend on it.
        memory_limit: bytes that texts of more than 512 tokens may take on the CPU at a time, in this process, besides
            the weights; others wait. A text that takes more is refused. None for half of the machine's memory, or of
            what the cgroup allows.

    Raises:
        BundleError: not a bundle, incomplete, altered (`IntegrityError`) or unsafe (`UnsafeModelError`).
        ParityError: `verify` is true, and the probes' vectors are not the reference's.
        ProviderError: a provider is not available or not active, or the graph cannot be recorded.
        UsageError: an option cannot be used as given, or the hub has no such repository or revision.
        WhitenError: the hub cannot be reached, or refuses.
    """

    def __init__(
        self,
        path: str | Path,
        providers: Sequence[Provider] | None = None,
        threads: int | None = None,
        *,
        device: str | None = None,
        verify_hashes: bool = True,
        verify: bool = False,
        spinning: bool = True,
        cuda_graphs: bool = False,
        revision: str | None = None,
        max_characters: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        check_flags(verify_hashes=verify_hashes, verify=verify, cuda_graphs=cuda_graphs)
        if memory_limit is not None:
            memory_limit = whole_number("memory_limit", memory_limit, 1)
        if max_characters is not None:
            max_characters = whole_number("max_characters", max_characters, 1)
        options = SessionOptions(providers_for(providers, device), threads, spinning, memory_limit=memory_limit)
        first = provider_name(options.providers[0])
        if cuda_graphs and first != CUDA_PROVIDER:
            raise UsageError(f"cuda_graphs is for {CUDA_PROVIDER}, not {first}; pass device='cuda', or leave it out")
        folder = locate_bundle(path, revision).absolute()
        self._open(Opening(folder, options, verify_hashes, verify, cuda_graphs, max_characters))

    def encode(
        self,
        texts: Texts,
        *,
        show_progress_bar: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        **options: Unpack[EncodeArguments],
    ) -> Any:
        """Embed texts.

        A vector does not depend on the other texts of the call, with any `precision`. The order of the texts is kept,
        and equal ones are computed once. Arguments are named as in sentence-transformers.

        Args:
            texts: one text, or several: a list, an iterable, or a column of pandas, polars, pyarrow, datasets or numpy.
                An empty text is valid.
            show_progress_bar: draw a bar on stderr; None for no bar.
            convert_to_numpy: return an array; False without `convert_to_tensor` returns torch's tensors, one a text.
            convert_to_tensor: return one tensor of torch, on the CPU.
            device: None, or the encoder's own device, which was chosen when it was opened.

        Keyword Args:
            prompt_name (str | None): name of one of the bundle's prompts; None for its default one.
            prompt (str | None): the prompt itself, in place of a name; an empty string for none. It is put before each
                text, or around it if it contains "{text}", and is truncated with it.
            batch_size (int | None): maximum number of texts per batch; None for no limit but that of padded tokens.
            truncate (bool): truncate texts longer than `max_seq_length` tokens (counted in `truncated`) instead of
                raising.
            max_characters (int | None): characters of a text beyond which it is cut before it is tokenised, and counted
                in `truncated`, or raises; None for the encoder's. Only texts that have fewer than `max_seq_length`
                tokens in so many characters, such as those of blanks, get another vector by it.
            normalize_embeddings (bool): divide each vector by its L2 norm (after `truncate_dim`).
            truncate_dim (int | None): keep only the first coordinates; the result is exactly the whitening to that many
                dimensions. Only for methods whose columns are nested (pca, pca-cor), and for the Matryoshka dimensions
                of a model without whitening.
            precision (VectorPrecision | None): "int8" and "uint8" divide the range of each coordinate into 255 steps,
                and clip what is outside; "binary" (int8) and "ubinary" (uint8) keep whether a coordinate is positive,
                eight in a byte, with zeros after the last one; None is "float32". Given the same ranges, results are
                those of `quantize_embeddings` of sentence-transformers 6; but its `encode` takes ranges from the texts
                of the call.
            ranges (ArrayLike | None): lower and upper ends of the coordinates for int8 and uint8, [2, k]; None for
                those of `ranges()`.

        Returns:
            float32 [n, k], or [k] for a single string; int8 or uint8 with another `precision`, of k / 8 columns,
            rounded up, for "binary" and "ubinary".

        Raises:
            TextError: `texts` is no str and no iterable of texts, or an item is not a string; the message has its
                index.
            TooLongError: a text is too long and `truncate` is False.
            BundleError: the graph gives a text a vector that is not finite; the message has its index.
            UsageError: `batch_size`, `truncate_dim` or `max_characters` is out of range; the bundle's vectors cannot be
                truncated; there is no prompt of this name; the bundle stores no ranges and none are given; or another
                argument cannot be used as given.
            MissingPackageError: tensors are asked for, and torch is not installed.
        """
        check_flags(convert_to_numpy=convert_to_numpy, convert_to_tensor=convert_to_tensor)
        if device is not None:
            check_device(device, self.device)
        vectors: Any = self._vectors(texts, encode_options(self, **options), bool(show_progress_bar))
        if convert_to_tensor or not convert_to_numpy:
            vectors = as_tensors(vectors, convert_to_tensor)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Embed queries: as `encode`, with the prompt "query" if neither `prompt_name` nor `prompt` is given.

        Without such a prompt, no prompt is applied, not even the default one, as in sentence-transformers; only a
        default template (with "{text}") is.

        Args:
            texts: one text, or several.
            prompt_name: name of another prompt.
            prompt: another prompt itself.
            options: further arguments of `encode`, all of them.

        Returns:
            What `encode` returns.

        Raises:
            UsageError: the bundle holds another route of a model that has one for queries and one for documents.
            WhitenError: as in `encode`.
        """
        return self._encode_for("query", texts, prompt_name, prompt, options)

    def encode_document(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Embed documents: as `encode_query`, with the prompt "document", else "passage", else "corpus"."""
        return self._encode_for("document", texts, prompt_name, prompt, options)

    def _encode_for(
        self, task: Task, texts: Texts, prompt_name: str | None, prompt: str | None, options: dict[str, Any]
    ) -> Any:
        check_route(self.manifest, task)
        if prompt_name is None and prompt is None:
            prompt = Prompts.of(self.manifest).for_task(task)
        return self.encode(texts, prompt_name=prompt_name, prompt=prompt, **options)

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
            texts: one text, or several. All arguments are those of `encode`.
            prompt_name: name of a prompt.
            prompt: the prompt itself.
            batch_size: maximum number of texts per batch.
            truncate: truncate long texts instead of raising.
            max_characters: characters beyond which a text is cut before it is tokenised.

        Returns:
            The vectors that `encode` returns, float32 [n, k], and the mean over the chosen layers before whitening and
            normalisation, float32 [n, d]; [k] and [d] for a single string.

        Raises:
            UsageError: the graph does not give both, as it neither whitens nor normalises, or as a version before 0.5
                wrote it; or `batch_size` is out of range.
            TextError: as in `encode`, and TooLongError and BundleError too.
        """
        if not self._engine.gives(UNWHITENED_OUTPUT):
            plain = self.manifest.whitening is None and not self.manifest.normalize
            why = "neither whitens nor normalises" if plain else "was written by a version before 0.5"
            raise UsageError(f"this bundle gives one vector a text, as it {why}; export the model again")
        settings = encode_options(
            self,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            truncate=truncate,
            max_characters=max_characters,
        )
        both = self._vectors(texts, replace(settings, outputs=(OUTPUT, UNWHITENED_OUTPUT), width=None))
        white, raw = np.split(both, [self.dimension], axis=1)
        return (white[0], raw[0]) if isinstance(texts, str) else (white, raw)

    def encode_iter(
        self,
        texts: Iterable[str],
        **options: Unpack[EncodeArguments],
    ) -> Iterator[NDArray[Any]]:
        """Embed a stream of texts of any length in bounded memory.

        Reads up to 8,192 texts ahead, or those that have 32 million characters, to sort them by length and to tokenise
        the next ones meanwhile.

        Args:
            texts: an iterable of texts, read once.
            options: the keyword arguments of `encode`.

        Yields:
            float32 [k] for each text, in order; with another `precision`, as in `encode`.

        Raises:
            WhitenError: as in `encode`. What is wrong with a text is raised when its window is read.
        """
        if isinstance(texts, str):
            raise TextError("texts is a single str; wanted an iterable of str, such as a list of it")
        settings = encode_options(self, **options)
        windows = self._embedder.windows(as_iterable(texts), settings)
        return (row.copy() for _, rows in windows for row in rows)  # a view would keep its whole window

    def _vectors(self, texts: Texts, options: EncodeOptions, show_progress_bar: bool = False) -> NDArray[Any]:
        items = [texts] if isinstance(texts, str) else checked_texts(texts)
        with progress_bar(len(items), show_progress_bar) as advance:
            return self._embedder.embed_once(items, options, advance)

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
        """Return the device of the first provider: "cpu", "cuda:N" or "tensorrt:N", else its name."""
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
        self._passages.close()


def embedder_of(encoder: Encoder) -> Embedder:
    """Return what tokenises and runs the texts of an encoder, for packages of whiten that do it step by step."""
    return encoder._embedder


def check_device(device: object, own_device: str) -> None:
    if str(device) not in (own_device, own_device.removesuffix(":0")):
        raise UsageError(
            f"device is {str(device)!r}, but this encoder is on {own_device!r}, as chosen when it was opened; leave it "
            "out, or open another with Encoder(path, device=...)"
        )
