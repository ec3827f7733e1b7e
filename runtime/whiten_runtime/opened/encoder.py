"""Embed texts with a bundle: `Encoder`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.embedder import DOCUMENT, QUERY
from whiten_runtime.inference.vectors import as_tensors
from whiten_runtime.opened.opening import Opening
from whiten_runtime.opened.text_bundle import TextBundle
from whiten_runtime.ort.providers import CUDA_PROVIDER, Provider, provider_name, providers_for
from whiten_runtime.ort.session import SessionOptions

Texts = str | Iterable[str]


class Encoder(TextBundle):
    """Embeds texts with a bundle. Thread-safe, picklable, usable in forked children.

    Uses the network only to download a bundle that is named by its repository and is not in the hub's cache.

    Args:
        path: a bundle directory, as written by whiten-export, or a repository of the model hub: "org/name",
            "hf://org/name" or "hf://org/name@revision". A directory that exists goes before a repository of its name.
        providers: onnxruntime execution providers, names or (name, options) pairs, in order of preference; None for the
            CPU. All of them must be active, and run all matrix products: none is left to the CPU unless it is named.
        threads: threads per call; None for the environment's WHITEN_THREADS, else all the CPUs this process may use
            (affinity and cgroup quota).
        device: "cpu", "cuda", "cuda:N", "tensorrt", "openvino" or "openvino:bf16", in place of `providers`. The last
            two need whiten[openvino]; bf16 is refused by processors without it.
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
    ) -> None:
        path = locate_bundle(path, revision)
        options = SessionOptions(providers_for(providers, device), threads, spinning)
        first = provider_name(options.providers[0])
        if cuda_graphs and first != CUDA_PROVIDER:
            raise UsageError(f"cuda_graphs is for {CUDA_PROVIDER}, not {first}; pass device='cuda', or leave it out")
        self._open(Opening(path.absolute(), options, verify_hashes, bool(verify), cuda_graphs, max_characters))

    def encode(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = False,
        precision: VectorPrecision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        truncate: bool = True,
        max_characters: int | None = None,
        ranges: ArrayLike | None = None,
    ) -> Any:
        """Embed texts.

        A vector does not depend on the other texts of the call, with any `precision`. The order of the texts is kept.
        Arguments are named as in sentence-transformers.

        Args:
            texts: one text, or several: a list, an iterable, or a column of pandas, polars, pyarrow, datasets or numpy.
                An empty text is valid.
            prompt_name: name of one of the bundle's prompts; None for its default one.
            prompt: the prompt itself, in place of a name; an empty string for none. It is put before each text, or
                around it if it contains "{text}", and is truncated with it.
            batch_size: maximum number of texts per batch; None for no limit but that of padded tokens.
            show_progress_bar: draw a bar on stderr; None for no bar.
            precision: "int8" and "uint8" divide the range of each coordinate into 255 steps, and clip what is outside;
                "binary" (int8) and "ubinary" (uint8) keep whether a coordinate is positive, eight in a byte, with zeros
                after the last one; None is "float32". Given the same ranges, results are those of `quantize_embeddings`
                of sentence-transformers 6; but its `encode` takes ranges from the texts of the call.
            convert_to_numpy: return an array; False without `convert_to_tensor` returns torch's tensors, one a text.
            convert_to_tensor: return one tensor of torch, on the CPU.
            device: None, or the encoder's own device, which was chosen when it was opened.
            normalize_embeddings: divide each vector by its L2 norm (after `truncate_dim`).
            truncate_dim: keep only the first coordinates; the result is exactly the whitening to that many dimensions.
                Only for methods whose columns are nested (pca, pca-cor), and for the Matryoshka dimensions of a model
                without whitening.
            truncate: truncate texts longer than `max_seq_length` tokens (counted in `truncated`) instead of raising.
            max_characters: characters of a text beyond which it is cut before it is tokenised, and counted in
                `truncated`, or raises; None for the encoder's. Only texts that have fewer than `max_seq_length` tokens
                in so many characters, such as those of blanks, get another vector by it.
            ranges: lower and upper ends of the coordinates for int8 and uint8, [2, k]; None for those of `ranges()`.

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
        if device is not None:
            check_device(device, self.device)
        options = self._embedder.options(
            self.manifest,
            prompt_name,
            prompt,
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            truncate=truncate,
            max_characters=max_characters,
        )
        if precision is None:
            precision = "float32"
        plain = precision == "float32" and ranges is None
        quantizer = None if plain else self._quantizer(precision, ranges, options)
        vectors: NDArray[Any] = self._embedder.embed_given(texts, options, bool(show_progress_bar))
        if quantizer is not None:
            vectors = quantizer(vectors)
        found = vectors if convert_to_numpy and not convert_to_tensor else as_tensors(vectors, bool(convert_to_tensor))
        return found[0] if isinstance(texts, str) else found

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
        return self._encode_for("query", QUERY, texts, prompt_name, prompt, options)

    def encode_document(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Embed documents: as `encode_query`, with the prompt "document", else "passage", else "corpus".

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
        return self._encode_for("document", DOCUMENT, texts, prompt_name, prompt, options)

    def _encode_for(
        self,
        task: Literal["query", "document"],
        names: Sequence[str],
        texts: Texts,
        prompt_name: str | None,
        prompt: str | None,
        options: dict[str, Any],
    ) -> Any:
        route = self.manifest.route
        if route in ("query", "document") and route != task:
            raise UsageError(f"this bundle holds the route {route}; export one with --route {task} for this")
        if prompt_name is None and prompt is None:
            prompt = self._embedder.prompts.for_task(*names)
        return self.encode(texts, prompt_name=prompt_name, prompt=prompt, **options)


def check_device(device: object, own_device: str) -> None:
    """Check that the device of a call is the encoder's own."""
    if str(device) not in (own_device, own_device.removesuffix(":0")):
        raise UsageError(
            f"device is {str(device)!r}, but this encoder is on {own_device!r}, as chosen when it was opened; leave it "
            "out, or open another with Encoder(path, device=...)"
        )
