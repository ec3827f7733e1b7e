"""Embed texts with a bundle: `Encoder`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.errors import TextError, UsageError, as_iterable, check_flags, checked_texts, whole_number
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.embedder import progress_bar
from whiten_runtime.inference.options import EncodeArguments, EncodeOptions, Prompts, Task, check_route
from whiten_runtime.inference.vectors import as_tensors
from whiten_runtime.opened.model import OpenedModel
from whiten_runtime.opened.opening import Opening, encode_options
from whiten_runtime.ort.providers import CUDA_PROVIDER, Provider, provider_name, providers_for
from whiten_runtime.ort.session import SessionOptions

Texts = str | Iterable[str]


class Encoder(OpenedModel):
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
            `truncate=False`; None for 250 for each token of `max_seq_length`. Texts of words have more tokens than the
            model takes long before, and their vectors do not depend on it.
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


def check_device(device: object, own_device: str) -> None:
    if str(device) not in (own_device, own_device.removesuffix(":0")):
        raise UsageError(
            f"device is {str(device)!r}, but this encoder is on {own_device!r}, as chosen when it was opened; leave it "
            "out, or open another with Encoder(path, device=...)"
        )
