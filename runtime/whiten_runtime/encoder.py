"""Embed texts with a bundle: `Encoder`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.parity import Agreement, alone_and_batched, compare_finished
from whiten_runtime.checks import checked_texts
from whiten_runtime.errors import TextError, UsageError
from whiten_runtime.inference.embedder import EncodeOptions, progress_bar
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.prompts import DOCUMENT, QUERY
from whiten_runtime.inference.tuned import tuned_options
from whiten_runtime.inference.vectors import similarity_matrix
from whiten_runtime.opened import OpenedBundle
from whiten_runtime.ort.placement import Placement
from whiten_runtime.ort.providers import CUDA_PROVIDER, Provider, provider_name, providers_for
from whiten_runtime.ort.session import SessionOptions

_WARM = 512
"""Number of tokens of the long text of a warm-up, at most: the memory of attention grows with its square."""


class Encoder(OpenedBundle):
    """Embeds texts with a bundle. Thread-safe, picklable, usable in forked children; never uses the network.

    Args:
        path: a bundle directory, as written by whiten-export.
        providers: onnxruntime execution providers, names or (name, options) pairs, in order of preference; None for the
            CPU. All of them must be active, and matrix products must be on the first: there is no silent fallback.
        threads: threads per call; None for the environment's WHITEN_THREADS, else all the CPUs this process may use
            (affinity and cgroup quota).
        device: "cpu", "cuda", "cuda:N", "openvino" or "openvino:bf16", in place of `providers`. The last two need
            whiten[openvino]; bf16 is refused by processors without it.
        verify_hashes: compare each file's SHA-256 with the manifest before using it.
        spinning: let threads spin while one operator waits for the next, which is faster; False where other programs
            need the processor more. Threads never spin between calls.
        cuda_graphs: on CUDA, record the kernels for a single text of up to 128 tokens, and launch them as one CUDA
            graph for single-text requests. This needs a second copy of the weights on the GPU (`gpu_mem_limit` applies
            to each copy) and a moment now, in which nothing else should use the GPU.
        tuned: take provider, threads and token budget from PATH.tuned.json, which `whiten tune` wrote on this machine.
            One of another machine or another bundle is refused.

    Raises:
        BundleError: not a bundle, incomplete, altered (`IntegrityError`) or unsafe (`UnsafeModelError`).
        ProviderError: a provider is not available or not active, or the graph cannot be recorded.
        UsageError: an option cannot be used as given.
    """

    def __init__(
        self,
        path: str | Path,
        providers: Sequence[Provider] | None = None,
        threads: int | None = None,
        *,
        device: str | None = None,
        verify_hashes: bool = True,
        spinning: bool = True,
        cuda_graphs: bool = False,
        tuned: bool = False,
    ) -> None:
        if tuned:
            if (providers, threads, device) != (None, None, None):
                raise UsageError("tuned takes providers and threads from whiten tune; leave them and device out")
            options = tuned_options(Path(path), spinning)
        else:
            options = SessionOptions(providers_for(providers, device), threads, spinning)
        first = provider_name(options.providers[0])
        if cuda_graphs and first != CUDA_PROVIDER:
            raise UsageError(f"cuda_graphs is for {CUDA_PROVIDER}, not {first}; pass device='cuda', or leave it out")
        # Resolve the path now: the process may change its directory before it forks or pickles.
        self._open(Path(path).absolute(), options, verify_hashes, cuda_graphs)

    def _open(self, path: Path, options: SessionOptions, verify_hashes: bool, cuda_graphs: bool) -> None:
        self._arguments = (path, options, verify_hashes, cuda_graphs)
        self._bundle, self._embedder = load_bundle(path, options, verify_hashes)
        self._tokenizer, self._engine = self._embedder.tokenizer, self._embedder.engine
        if cuda_graphs:
            try:
                self._engine.record(self.max_seq_length)
            except BaseException:
                self.close()
                raise

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
    ) -> NDArray[np.float32]:
        """Embed texts.

        A vector does not depend on the other texts of the call. The order of the texts is kept.

        Args:
            texts: one text, or several. An empty text is valid.
            prompt_name: name of one of the bundle's prompts; None for its default one.
            prompt: the prompt itself, in place of a name; an empty string for none. It is put before each text, or
                around it if it contains "{text}", and is truncated with it.
            batch_size: maximum number of texts per batch; None for no limit but that of padded tokens.
            show_progress_bar: draw a bar on stderr.
            normalize_embeddings: divide each vector by its L2 norm (after `truncate_dim`).
            truncate_dim: keep only the first coordinates; the result is exactly the whitening to that many dimensions.
                Only for methods whose columns are nested (pca, pca-cor), and for the Matryoshka dimensions of a model
                without whitening.
            truncate: truncate texts longer than `max_seq_length` tokens (counted in `truncated`) instead of raising.

        Returns:
            float32 [n, k], or [k] for a single string.

        Raises:
            TextError: an item of `texts` is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: `batch_size` or `truncate_dim` is out of range, the bundle's vectors cannot be truncated, or
                there is no prompt of this name.
        """
        prompt = self._embedder.prompts.resolve(prompt_name, prompt)
        options = self._options(batch_size, normalize_embeddings, truncate_dim, truncate, prompt)
        vectors = self._vectors(texts, options, show_progress_bar)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(
        self, texts: str | Iterable[str], *, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> NDArray[np.float32]:
        """Embed queries: as `encode`, with the prompt "query" if neither `prompt_name` nor `prompt` is given.

        Without such a prompt, no prompt is applied, not even the default one, as in sentence-transformers; only a
        default template (with "{text}") is.

        Args:
            texts: one text, or several.
            prompt_name: name of another prompt.
            prompt: another prompt itself.
            options: further options of `encode`.

        Returns:
            float32 [n, k], or [k] for a single string.

        Raises:
            UsageError: the bundle holds another route of a model that has one for queries and one for documents.
            WhitenError: as in `encode`.
        """
        return self._encode_for("query", texts, prompt_name, prompt, options)

    def encode_document(
        self, texts: str | Iterable[str], *, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> NDArray[np.float32]:
        """Embed documents: as `encode_query`, with the prompt "document", else "passage", else "corpus".

        Args:
            texts: one text, or several.
            prompt_name: name of another prompt.
            prompt: another prompt itself.
            options: further options of `encode`.

        Returns:
            float32 [n, k], or [k] for a single string.

        Raises:
            UsageError: the bundle holds another route of a model that has one for queries and one for documents.
            WhitenError: as in `encode`.
        """
        return self._encode_for("document", texts, prompt_name, prompt, options)

    def encode_both(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        truncate: bool = True,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed texts, and return their vectors after and before whitening, from one run of the graph.

        Args:
            texts: one text, or several.
            prompt_name: name of a prompt, as in `encode`.
            prompt: the prompt itself, as in `encode`.
            batch_size: maximum number of texts per batch.
            truncate: truncate long texts instead of raising.

        Returns:
            The vectors that `encode` returns, float32 [n, k], and the mean over the chosen layers before whitening and
            normalisation, float32 [n, d]; [k] and [d] for a single string.

        Raises:
            UsageError: the bundle was not exported with `--outputs both`, or `batch_size` is out of range.
            TextError: as in `encode`, and TooLongError too.
        """
        if self.manifest.outputs != "both":
            raise UsageError("this bundle gives one vector a text; export it with --outputs both")
        prompt = self._embedder.prompts.resolve(prompt_name, prompt)
        plain = self._options(batch_size, False, None, truncate, prompt)
        values = (OUTPUT, UNWHITENED_OUTPUT)
        options = replace(plain, width=self._engine.width_of(*values), values=values)
        white, raw = np.split(self._vectors(texts, options, False), [self.dimension], axis=1)
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
    ) -> Iterator[NDArray[np.float32]]:
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

        Yields:
            float32 [k] for each text, in order.

        Raises:
            TextError: an item of `texts` is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: `batch_size` or `truncate_dim` is out of range, or there is no prompt of this name.
        """
        if isinstance(texts, str):
            raise TextError("texts is a single str; wanted an iterable of str, such as a list of it")
        prompt = self._embedder.prompts.resolve(prompt_name, prompt)
        options = self._options(batch_size, normalize_embeddings, truncate_dim, truncate, prompt)
        return (row for _, rows in self._embedder.windows(texts, options) for row in rows)

    def token_count(self, texts: str | Iterable[str]) -> int | list[int]:
        """Return the number of tokens of a text, or of each text, special tokens included, before truncation."""
        if isinstance(texts, str):
            return len(self._tokenizer.tokenize([texts])[0])
        return [len(ids) for ids in self._tokenizer.tokenize(checked_texts(texts))]

    def similarity(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Return the similarity of every vector of `a` with every vector of `b`.

        It is the one that the model was trained for (`manifest.similarity_fn_name`): the cosine, unless its authors say
        otherwise; a dot product; or the negative euclidean or manhattan distance.

        Args:
            a: shape [n, k] or [k].
            b: shape [m, k] or [k].

        Returns:
            float32 [n, m]; the cosine of a vector of norm zero with any other is 0.

        Raises:
            UsageError: the vectors have different numbers of dimensions.
        """
        first, second = (np.atleast_2d(np.asarray(vectors, np.float32)) for vectors in (a, b))
        if first.shape[1] != second.shape[1]:
            raise UsageError(
                f"vectors of {first.shape[1]} and {second.shape[1]} dimensions cannot be compared; "
                "embed both with the same bundle and truncate_dim"
            )
        return similarity_matrix(first, second, self.manifest.similarity_fn_name)

    def verify(self) -> Agreement:
        """Embed the bundle's probes, alone and batched, and compare them with the stored vectors of the reference.

        Raises:
            BundleError: the probes are missing or damaged.
        """
        from whiten_runtime.bundle.probes import read_probes  # imports safetensors, which nothing else here needs

        probes = read_probes(self._bundle)
        ids = [self._tokenizer.cut(row) for row in self._tokenizer.tokenize(probes.texts)]
        alone, batched = alone_and_batched(self._engine.vectors, ids)
        got = np.concatenate([batched, alone])
        return compare_finished(self.manifest.vectors, got, np.tile(probes.embeddings, (2, 1)))

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

    def _encode_for(
        self,
        task: Literal["query", "document"],
        texts: str | Iterable[str],
        prompt_name: str | None,
        prompt: str | None,
        options: dict[str, Any],
    ) -> NDArray[np.float32]:
        route = self.manifest.route
        if route in ("query", "document") and route != task:
            raise UsageError(f"this bundle holds the route {route}; export one with --route {task} for this")
        if prompt_name is None and prompt is None:
            prompt = self._embedder.prompts.for_task(*(QUERY if task == "query" else DOCUMENT))
        return self.encode(texts, prompt_name=prompt_name, prompt=prompt, **options)

    def _vectors(
        self, texts: str | Iterable[str], options: EncodeOptions, show_progress_bar: bool
    ) -> NDArray[np.float32]:
        items = [texts] if isinstance(texts, str) else checked_texts(texts)
        if not show_progress_bar:
            return self._embedder.embed(items, options)
        with progress_bar(len(items), show_progress_bar) as advance:
            return self._embedder.embed(items, options, advance)

    def _options(
        self, batch_size: int | None, normalize: bool, truncate_dim: int | None, truncate: bool, prompt: str
    ) -> EncodeOptions:
        self._engine.check_open()
        return EncodeOptions.of(self.manifest, batch_size, normalize, truncate_dim, truncate, prompt)
