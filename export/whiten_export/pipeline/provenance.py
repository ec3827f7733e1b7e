"""Build the manifest of an export."""

from pathlib import Path

from whiten_export.pipeline.choose_whitening import Decision
from whiten_export.pipeline.describe import describe_whitening, versions
from whiten_export.pipeline.plan import Plan
from whiten_runtime.bundle.bundle import file_record, list_files
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.space import with_space


def describe_export(plan: Plan, decision: Decision, opset: int, stage: Path) -> Manifest:
    """Return the manifest of the files in `stage`, without parity."""
    graph, fitted = plan.recipe.graph, decision.fitted
    composition, own = plan.composition, plan.composed.own
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=plan.target.absolute().name,
        source=plan.model.record,
        input="text",
        layers=plan.layers,
        layer_weights=composition.layer_weights,
        pooling=plan.pooling,
        include_prompt=composition.include_prompt,
        modules=tuple(map(str, composition.modules)),
        unwhitened_dimension=None if plan.width == plan.model.record.hidden_size else plan.width,
        prompts=dict(plan.prompts.texts),
        default_prompt_name=plan.prompts.default,
        truncation_side=plan.model.tokenizer.truncation_side,
        similarity_fn_name=plan.similarity_fn_name,
        matryoshka_dimensions=own.dimensions if own is not None and plan.composed.keeps_modules and not fitted else (),
        route=None if own is None else own.route,
        whitening=describe_whitening(fitted, decision.statistics, decision.alignment),
        choice=decision.choice,
        normalize=bool(graph.normalize),
        outputs=graph.outputs if fitted else "whitened",
        vectors=graph.vectors,
        dimension=plan.width if fitted is None else fitted.weight.shape[1],
        max_seq_length=plan.max_seq_length,
        pad_token_id=plan.model.tokenizer.pad_token_id,
        precision=graph.precision,
        target=graph.target,
        opset=opset,
        versions=versions(),
        parity=None,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )
    return with_space(manifest)
