"""The manifest of an export: where its parts come from and what made them."""

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whiten_export.plan import Plan
from whiten_export.whitening import EIGENVALUE_FLOOR, WhiteningMap
from whiten_runtime.bundle import file_record, list_files
from whiten_runtime.manifest import (
    FORMAT_VERSION,
    CorpusRecord,
    Manifest,
    ParityRecord,
    WhiteningMethod,
    WhiteningRecord,
)
from whiten_runtime.parity import Agreement

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


def describe_export(plan: Plan, fitted: WhiteningMap | None, opset: int, stage: Path) -> Manifest:
    """The manifest of what lies in `stage`, without parity."""
    recipe = plan.recipe
    return Manifest(
        format_version=FORMAT_VERSION,
        name=plan.target.absolute().name,
        source=plan.model.record,
        input="text",
        layers=plan.layers,
        pooling=plan.pooling,
        whitening=describe_whitening(fitted, recipe.whitening or "none", plan.corpus.records if plan.corpus else ()),
        normalize=recipe.normalize,
        dimension=plan.dimension,
        max_seq_length=plan.max_seq_length,
        pad_token_id=plan.model.tokenizer.pad_token_id,
        precision=recipe.precision,
        opset=opset,
        versions=versions(),
        parity=None,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )


def describe_whitening(
    fitted: WhiteningMap | None, method: WhiteningMethod, corpus: tuple[CorpusRecord, ...]
) -> WhiteningRecord | None:
    """How a map was fitted, for the manifest."""
    if fitted is None:
        return None
    return WhiteningRecord(
        method=method,
        common_components=fitted.common_components,
        beta=1.0 if method == "pca" else 0.0,
        shrinkage=0.0,
        eigenvalue_floor=EIGENVALUE_FLOOR,
        rank=fitted.rank,
        n_samples=fitted.n_samples,
        corpus=corpus,
    )


def parity_record(reference: str, agreement: Agreement) -> ParityRecord:
    """An agreement, for the manifest."""
    return ParityRecord(reference=reference, **dataclasses.asdict(agreement))


def versions() -> dict[str, str]:
    """Of the programs that take part in an export, those that are installed."""
    found = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
