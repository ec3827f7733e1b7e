"""`MtebModel`: a bundle as a model of mteb, whose tasks and leaderboards then take it."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.checks import needing
from whiten_runtime.encoder import Encoder

with needing("mteb"):
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction


class MtebModel(AbsEncoder):  # type: ignore[misc]
    """What `mteb.evaluate` takes: `mteb.evaluate(MtebModel("my-bundle"), mteb.get_tasks(tasks=["STSBenchmark"]))`.

    Similarities are cosines, as mteb computes them.

    Args:
        encoder: an open bundle, or its directory.
        name: for mteb's results, "organisation/name"; None for the bundle's own name, of the organisation "whiten".

    Attributes:
        model: the encoder.
        mteb_model_meta: what the manifest says. Its revision is a hash of the manifest, so that mteb does not take the
            results of one bundle for those of another.

    Raises:
        BundleError: not a bundle, or not a whole one.
        WhitenError: mteb is not installed; raised where this module is imported.
    """

    def __init__(self, encoder: Encoder | str | Path, name: str | None = None) -> None:
        self.model = encoder if isinstance(encoder, Encoder) else Encoder(encoder)
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
            similarity_fn_name=ScoringFunction.COSINE,
            use_instructions=False,
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
    ) -> NDArray[np.float32]:
        """Embed mteb's batches of texts; every task and every prompt type alike.

        Args:
            inputs: batches with the column "text".
            task_metadata: of mteb's interface, as the next three.
            hf_split: of the data.
            hf_subset: of the data.
            prompt_type: query or document.
            batch_size: texts per run at most.
            show_progress_bar: draw a bar on stderr.

        Returns:
            float32 [n, k].
        """
        texts = [text for batch in inputs for text in batch["text"]]
        return self.model.encode(texts, batch_size=batch_size, show_progress_bar=show_progress_bar)
