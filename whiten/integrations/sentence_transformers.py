"""Open a bundle as a `SentenceTransformer`, with sentence-transformers 5.5 or newer: `load`."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from whiten.integrations import open_encoder
from whiten.integrations.saved_copy import LENGTH, LENGTH_FILE, prompts_of, save_copy, saved_length
from whiten_runtime.encoder import Encoder, embedder_of
from whiten_runtime.errors import BundleError, NoVectorError, UsageError, checked_texts, needing_package, whole_number
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_runtime.inference.options import EncodeOptions, check_route
from whiten_runtime.inference.vectors import as_tensors
from whiten_runtime.opened_bundle import bundle_of, encode_options

with needing_package("sentence-transformers>=5.5"):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import InputModule
    from transformers import PreTrainedTokenizerFast


def load(encoder: Encoder | str | Path, *, truncate_dim: int | None = None) -> "BundleTransformer":
    """Open a bundle as a SentenceTransformer, whose `encode` gives the vectors of `Encoder.encode`.

    It has the bundle's prompts, similarity and maximum length. `encode_query` and `encode_document` apply the prompts
    that the encoder's do. `save_pretrained` writes a copy of the bundle, which `load` and `Encoder` open, and
    `SentenceTransformer(path, trust_remote_code=True)` too where whiten is installed.

    Args:
        encoder: the bundle's directory; or an open encoder, as one on a GPU.
        truncate_dim: keep only the first coordinates, where `Encoder.encode` does; a number above the bundle's
            dimension keeps all, as in sentence-transformers.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        UsageError: the bundle's vectors cannot be truncated.
        MissingPackageError: sentence-transformers is not installed; raised where this module is imported.
    """
    opened = open_encoder(encoder)
    module = BundleModule(opened, saved_length(opened.path))
    manifest = module.encoder.manifest
    _options(module.encoder, truncate_dim, prompt="")
    return BundleTransformer(
        modules=[module],
        device="cpu",
        prompts=prompts_of(manifest),
        default_prompt_name=manifest.default_prompt_name,
        similarity_fn_name=manifest.similarity_fn_name,
        truncate_dim=truncate_dim,
        local_files_only=True,
    )


class BundleTransformer(SentenceTransformer):  # type: ignore[misc]
    """Represents a bundle as a SentenceTransformer: `load` makes it."""

    def encode(self, *arguments: Any, **options: Any) -> Any:
        """Embed texts, with the arguments of `SentenceTransformer.encode`.

        Vectors that are cut to `truncate_dim` are normalised again where those of the bundle are.

        Raises:
            UsageError: `truncate_dim` cuts vectors whose first coordinates mean no more than the others, or vectors of
                tokens are asked for, which a bundle does not compute.
            WhitenError: as in `Encoder.encode`.
        """
        names = list(inspect.signature(SentenceTransformer.encode).parameters)[1:]
        passed = dict(zip(names, arguments, strict=False)) | options
        wanted = passed.get("output_value", "sentence_embedding")
        if wanted == "token_embeddings":
            raise UsageError("output_value is 'token_embeddings', but a bundle gives one vector for each text")
        precision = passed.get("precision", "float32")
        texts = passed.get(names[0], passed.get("sentences", ""))  # the older name is still taken
        if not isinstance(texts, str) and hasattr(texts, "__len__") and not len(texts):  # nothing to cut or round
            rounded = {"precision": "float32"} if precision in ("int8", "uint8") else {}
            return super().encode(**passed | rounded)
        width = passed.get("truncate_dim")
        coded = precision in ("int8", "uint8") and wanted is not None
        accepted = _options(
            self[0].encoder,
            self.truncate_dim if width is None else width,
            normalize_embeddings=bool(passed.get("normalize_embeddings")),
            precision=precision if coded else "float32",
        )
        passed |= {"normalize_embeddings": accepted.normalize}
        if accepted.quantize is None:
            return self._named(texts, passed)
        # sentence-transformers takes ranges from the call's texts, so that a vector would depend on its neighbours.
        plain = {"precision": "float32", "convert_to_numpy": True, "convert_to_tensor": False}
        vectors = self._named(texts, passed | plain)
        if passed.get("convert_to_numpy", True) and not passed.get("convert_to_tensor"):
            return accepted.quantize(vectors)
        return as_tensors(accepted.quantize(vectors), bool(passed.get("convert_to_tensor")) or vectors.ndim == 1)

    def _named(self, texts: Any, passed: dict[str, Any]) -> Any:
        """Embed texts; where one has no vector, find its index: sentence-transformers sorts them and cuts them up."""
        try:
            return super().encode(**passed)
        except NoVectorError:
            if isinstance(texts, str):
                raise
        name = next(name for name in passed if passed[name] is texts)
        for index, text in enumerate(texts):
            try:
                super().encode(**passed | {name: [text], "show_progress_bar": False})
            except NoVectorError as error:
                raise error.moved(index) from None
        raise BundleError("a text has no vector with others, but has one alone; run whiten verify")

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Accept only what the bundle does: whether the tokens of a prompt are pooled is decided at export.

        Raises:
            UsageError: the bundle does otherwise.
        """
        included = self[0].encoder.manifest.include_prompt
        if include_prompt != included:
            raise UsageError(
                f"include_prompt is {include_prompt}, but this bundle was exported with {included}; set it in the "
                "model's folder, and export it again"
            )

    def save(self, path: str | None, *arguments: Any, **options: Any) -> None:
        """Save a copy of the bundle that opens as a SentenceTransformer too; `save_pretrained` calls this.

        Args:
            path: directory of the copy; None saves nothing, as in sentence-transformers.
            arguments: as in `SentenceTransformer.save`.
            options: as in `SentenceTransformer.save`.

        Raises:
            UsageError: the directory is that of the bundle itself, or a file.
        """
        if path is None:
            return
        target = Path(path)
        if target.resolve() == self[0].encoder.path.resolve():
            raise UsageError(
                f"'{path}' is the bundle itself, whose files for other programs would change; name another"
            )
        if target.is_file():
            raise UsageError(f"'{path}' is a file; name a directory")
        super().save(path, *arguments, **options)


class BundleModule(InputModule):  # type: ignore[misc]
    """Computes the vectors of texts with a bundle, as the only module of a SentenceTransformer.

    Args:
        encoder: the bundle's directory, or an open encoder.
        max_seq_length: maximum number of tokens of a text, up to that of the bundle; None for that.

    Attributes:
        encoder: the encoder.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        UsageError: the bundle takes no text of that length.
    """

    config_file_name = LENGTH_FILE
    config_keys = [LENGTH]  # noqa: RUF012 (the name and type are those of sentence-transformers)
    save_in_root = True

    def __init__(self, encoder: Encoder | str | Path, max_seq_length: int | None = None) -> None:
        super().__init__()
        self.encoder = open_encoder(encoder)
        self._embedder = embedder_of(self.encoder)
        self._tokenizer: PreTrainedTokenizerFast | None = None
        if max_seq_length is not None:
            self.max_seq_length = max_seq_length

    @property
    def max_seq_length(self) -> int:
        """Return the maximum number of tokens of a text; a smaller one can be set."""
        return self._embedder.tokenizer.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        manifest, embedder = self.encoder.manifest, embedder_of(self.encoder)
        least = sum(embedder.tokenizer.special_tokens) + 1
        length = whole_number(LENGTH, value, least, manifest.max_seq_length, ", the most that the bundle takes")
        self._embedder = embedder.shortened(length)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return a copy of the tokenizer; what is changed in it changes no vector.

        Raises:
            IntegrityError: the bundle was replaced since it was opened.
        """
        if self._tokenizer is None:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(self.encoder.path, local_files_only=True)
            bundle_of(self.encoder).check_unchanged()
            self._tokenizer = tokenizer
        return self._tokenizer

    def get_embedding_dimension(self) -> int:
        """Return the number of coordinates of a vector."""
        return self.encoder.dimension

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, task: str | None = None, **options: object
    ) -> dict[str, Any]:
        """Tokenise texts, as sentence-transformers does.

        Args:
            inputs: texts.
            prompt: put before each text, or around it.
            task: "query" or "document", of which a bundle may hold one route alone.
            options: of sentence-transformers, of which a bundle has none.

        Returns:
            Padded `input_ids` and their `attention_mask`, int64 [n, m], and `prompt_length`, the number of tokens that
            the prompt takes, if there is one.

        Raises:
            UsageError: the bundle holds another route than that of the task, or other options are given.
            WhitenError: as in `Encoder.encode`.
        """
        if options:
            raise UsageError(f"{', '.join(options)}: a bundle has no options for its tokenizer; set max_seq_length")
        check_route(self.encoder.manifest, task)
        own = encode_options(self.encoder, prompt=prompt or "")
        feed = self._embedder.engine.feed(self._embedder.tokenize(checked_texts(inputs), own).ids)
        length = {"prompt_length": self._embedder.tokenizer.prompt_tokens(own.prompt)} if prompt else {}
        return {name: torch.from_numpy(array) for name, array in feed.items()} | length | {"modality": "text"}

    def forward(self, features: dict[str, Any], **options: object) -> dict[str, Any]:
        """Add the vectors of tokenised texts, `sentence_embedding`, float32 [n, k].

        Raises:
            WhitenError: as in `Encoder.encode`.
        """
        rows = zip(features["input_ids"], features["attention_mask"], strict=True)
        ids = [row[mask > 0].tolist() for row, mask in rows]
        own = encode_options(self.encoder, prompt="")
        left_out = 0 if own.include_prompt else features.get("prompt_length", 0)
        vectors = own.finish(self._embedder.run(TokenizedTexts(ids, left_out), own))
        return features | {"sentence_embedding": torch.from_numpy(vectors)}

    def save(self, output_path: str, *arguments: object, safe_serialization: bool = True, **options: object) -> None:
        """Copy the bundle's files, with the prompts, similarity and maximum length that the model has now.

        Prompts and similarity go into the manifest, where `Encoder` and `load` find them. The length is for
        sentence-transformers and `load` alone: the manifest's is that of the graph's proof.

        Args:
            output_path: directory; what sentence-transformers has written there stays.
            arguments: of sentence-transformers, not used.
            safe_serialization: of sentence-transformers, not used: a bundle has no pickle files.
            options: of sentence-transformers, not used.

        Raises:
            IntegrityError: the bundle was replaced since it was opened; the copy cannot be used.
        """
        save_copy(self.encoder, self.max_seq_length, Path(output_path))

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        backend: str = "torch",
        **options: Any,
    ) -> Self:
        """Open a saved copy, as `SentenceTransformer(path, trust_remote_code=True)` does.

        Args:
            model_name_or_path: directory of the copy, or its name on the model hub.
            subfolder: folder of the bundle in it.
            model_kwargs: options of `Encoder`, as `{"threads": 2}`.
            backend: of sentence-transformers: its default, or "onnx".
            options: other options of sentence-transformers, such as those of the model hub.

        Raises:
            BundleError: not a bundle.
            UsageError: `Encoder` has no such option, or options are given that a bundle does not have.
        """
        hub = {name: options.pop(name, None) for name in ("token", "cache_folder", "revision")}
        local = bool(options.pop("local_files_only", False))
        options.pop("trust_remote_code", None)  # asked for this class; the bundle has no code
        if unknown := sorted(name for name, value in options.items() if value):
            raise UsageError(f"{', '.join(unknown)}: a bundle has no such options; leave them out")
        if backend not in ("torch", "onnx"):
            raise UsageError(f"backend is '{backend}'; leave it out: onnxruntime computes a bundle's vectors")
        if unknown := sorted(set(model_kwargs or ()) - set(inspect.signature(Encoder).parameters)):
            raise UsageError(f"model_kwargs has {', '.join(unknown)}; wanted options of whiten's Encoder")
        path = cls.load_dir_path(model_name_or_path, subfolder=subfolder, local_files_only=local, **hub)
        if path is None:
            raise BundleError(f"{model_name_or_path}: there is no bundle in it; pass a bundle's directory")
        return cls(Encoder(path, **model_kwargs or {}), saved_length(Path(path)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.encoder, self.max_seq_length)


def _options(encoder: Encoder, width: int | None, **arguments: Any) -> EncodeOptions:
    """Check options as the encoder does; all coordinates are kept where `truncate_dim` is above their number."""
    if isinstance(width, int) and width > encoder.dimension:
        width = None
    return encode_options(encoder, truncate_dim=width, **arguments)
