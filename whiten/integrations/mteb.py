"""Adapt a bundle to mteb's interface for models: `MtebModel`."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten.integrations import open_encoder
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.inference.options import Prompts

with needing("mteb"):
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction


class MtebModel(AbsEncoder):  # type: ignore[misc]
    """Adapts a bundle to mteb, whose tasks and leaderboards then take it.

    `mteb.evaluate(MtebModel("my-bundle"), mteb.get_tasks(tasks=["STSBenchmark"]))` evaluates one. Similarities are
    those of the model, as mteb computes them.

    Args:
        encoder: an open bundle, or its directory.
        name: name in mteb's results, "organisation/name"; None for the bundle's own name in the organisation "whiten".

    Attributes:
        model: the encoder.
        mteb_model_meta: metadata from the manifest. Its revision is a hash of the manifest, so that mteb does not take
            the results of one bundle for those of another.

    Raises:
        BundleError: not a bundle, or an incomplete one.
        WhitenError: mteb is not installed; raised where this module is imported.
    """

    def __init__(self, encoder: Encoder | str | Path, name: str | None = None) -> None:
        self.model = open_encoder(encoder)
        manifest = self.model.manifest
        self.mteb_model_meta = ModelMeta(
            loader=None,
            name=name or f"whiten/{manifest.name}",
            revision=hashlib.sha256(manifest.to_json()).hexdigest()[:16],
            release_date=None,
            languages=None,
            n_parameters=None,
            memory_usage_mb=None,
            max_tokens=manifest.max_seq_length,
            embed_dim=manifest.dimension,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["ONNX"],
            similarity_fn_name=ScoringFunction(manifest.similarity_fn_name),
            use_instructions=bool(manifest.prompts),
            training_datasets=None,
            adapted_from=manifest.source.checkpoint,
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: object,
        hf_split: str,
        hf_subset: str,
        prompt_type: object = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
    ) -> NDArray[np.float32]:
        """Embed mteb's batches of texts, queries and documents each with their prompts.

        A prompt is found by its name, in mteb's order: the task with the prompt type ("Name-query"), the task, the type
        of task with the prompt type, the type of task ("Classification"), the prompt type ("query" or "document").
        Documents may have "passage" or "corpus" instead. Without any of them, queries and documents get no prompt,
        unless the default one goes around the text, and other texts get the default prompt.

        Args:
            inputs: batches with the column "text".
            task_metadata: metadata of the task.
            hf_split: split of the data; part of mteb's interface and ignored, as is the next.
            hf_subset: subset of the data.
            prompt_type: query or document.
            batch_size: largest number of texts per run.
            show_progress_bar: draw a bar on stderr.
            precision: "float32".
            convert_to_numpy: as in `Encoder.encode`.
            convert_to_tensor: as in `Encoder.encode`.
            normalize_embeddings: divide each vector by its L2 norm.

        Returns:
            Vectors, float32 [n, k].

        Raises:
            UsageError: another `precision`: mteb would compare codes as if they were vectors.
        """
        if precision != "float32":
            raise UsageError(
                f"precision is {precision!r}, but mteb compares codes as if they were vectors; leave it out, and "
                "measure stored vectors by whiten eval retrieval --vector-type"
            )
        texts = [text for batch in inputs for text in batch["text"]]
        prompt = self._prompt(task_metadata, prompt_type)
        vectors: NDArray[np.float32] = self.model.encode(
            texts,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            normalize_embeddings=normalize_embeddings,
        )
        return vectors

    def _prompt(self, task_metadata: object, prompt_type: object) -> str:
        prompts = Prompts.of(self.model.manifest)
        kind = getattr(prompt_type, "value", prompt_type)
        for task in (getattr(task_metadata, "name", None), getattr(task_metadata, "type", None)):
            for name in (f"{task}-{kind}", task):
                if name in prompts.texts:
                    return prompts.resolve(name)
        if kind == "query" or kind == "document":
            return prompts.for_task(kind)
        return prompts.resolve()
