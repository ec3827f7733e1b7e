"""The manifest of an export: where its parts come from and what made them."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whiten_export.graph import OPSET
from whiten_export.plan import Plan
from whiten_export.whitening import EIGENVALUE_FLOOR, WhiteningMap
from whiten_runtime.bundle import file_record, list_files
from whiten_runtime.manifest import FORMAT_VERSION, Manifest, Source, WhiteningRecord

_RECORDED = (
    "whiten",
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
)


def describe_export(plan: Plan, fitted: WhiteningMap | None, stage: Path) -> Manifest:
    """The manifest of what lies in `stage`, without parity."""
    checkpoint, recipe = plan.checkpoint, plan.recipe
    return Manifest(
        format_version=FORMAT_VERSION,
        name=plan.target.absolute().name,
        source=Source(
            model=checkpoint.name,
            checkpoint=checkpoint.hub_id,
            revision=checkpoint.revision,
            weights_sha256=checkpoint.weights_sha256,
            model_type=plan.config.model_type,
            num_hidden_layers=plan.config.num_hidden_layers,
            hidden_size=plan.width,
            sentence_similarity=checkpoint.sentence_similarity,
        ),
        layers=plan.layers,
        pooling=recipe.pooling,
        whitening=_describe_whitening(plan, fitted),
        normalize=recipe.normalize,
        dimension=plan.dimension,
        max_seq_length=plan.max_seq_length,
        pad_token_id=plan.pad_token_id,
        precision=recipe.precision,
        opset=OPSET,
        versions=_versions(),
        parity=None,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )


def _describe_whitening(plan: Plan, fitted: WhiteningMap | None) -> WhiteningRecord | None:
    if fitted is None or plan.corpus is None or plan.recipe.whitening is None:
        return None
    return WhiteningRecord(
        method=plan.recipe.whitening,
        beta=1.0,
        shrinkage=0.0,
        eigenvalue_floor=EIGENVALUE_FLOOR,
        rank=fitted.rank,
        n_samples=fitted.n_samples,
        corpus=plan.corpus.records,
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
