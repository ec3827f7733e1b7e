"""Give a bundle another whitening without PyTorch: its graph computes the vectors, and only the head is replaced."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from whiten_export.corpus.statistics import Statistics, warn_of_few, warn_of_rank
from whiten_export.graph.builder import read_bundle_graph, save_graph
from whiten_export.graph.head import set_head
from whiten_export.pipeline.align import (
    align_refit,
    align_with,
    report_alignment,
    report_new_space,
)
from whiten_export.pipeline.choose_whitening import report_kinds
from whiten_export.pipeline.fit import check_computes_as_recorded, check_takes_texts
from whiten_export.pipeline.prove import describe_whitening, parity_record, versions
from whiten_export.pipeline.recipe import check_similarity
from whiten_export.proof.gate import Expected, check_bundle, check_rounding
from whiten_export.proof.reference import Head
from whiten_export.writing.client_files import (
    CONFIG_FILE,
    POOLING_FILE,
    Export,
    rewrite_transformers_js,
    write_pooling,
    write_whitening,
)
from whiten_export.writing.model_card import with_model_card
from whiten_export.writing.staging import staged
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    WHITENING_FILE,
    Bundle,
    changed_client_files,
    file_record,
    list_files,
    open_bundle,
)
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest
from whiten_runtime.bundle.parity import Probes, gate_of, read_probes, write_probes
from whiten_runtime.bundle.records import ChoiceRecord, FileRecord, ParityRecord, VectorType, WhiteningRecord
from whiten_runtime.bundle.space import with_space
from whiten_runtime.errors import ParityError, UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.hub.uploading import CARD_FILE
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec, check_sample_count, fit_map, fit_sif
from whiten_whitening.moments import Moments

_REPLACED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE, CARD_FILE})

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"


def refit_bundle(
    path: str | Path,
    statistics: Statistics,
    spec: WhiteningSpec,
    out: Path,
    replace: bool = False,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
    align_to: str | Path | None = None,
    choice: ChoiceRecord | None = None,
    kinds: Mapping[str, Moments] | None = None,
    vector_type: VectorType | None = None,
) -> Export:
    """Write a bundle with another whitening, and verify it against the stored vectors of the reference.

    Args:
        path: the bundle: its directory, or a repository of the model hub.
        statistics: statistics from `fit_bundle`.
        spec: whitening to fit.
        out: directory to create.
        replace: replace a bundle that already exists.
        options: options with which sessions are created.
        reporter: receives stages and warnings.
        align_to: bundle of the same model whose stored vectors are to stay usable: the new map is turned onto its map.
        choice: the choice of the whitening, where it was left to a rule.
        kinds: moments of kinds of text on which the new map is checked, from `embed_kinds`; None for no check.
        vector_type: type of the finished vectors, as in `GraphChoice`; None for that of the bundle.

    Raises:
        UsageError: the whitening cannot be fitted on the statistics or aligned, they are not valid for the bundle, the
            bundle takes vectors, or `out` exists.
        BundleError: not a bundle, or not a whole one.
        ParityError: the new bundle fails its parity gate, or rounding to int8 costs too much; nothing is written.
    """
    report = reporter or Reporter()
    bundle = open_bundle(locate_bundle(path))
    old = bundle.manifest
    check_takes_texts(path, old)
    check_computes_as_recorded(options)
    probes = read_probes(bundle)
    width, kind = old.unwhitened_width, vector_type or old.vectors
    check_similarity(kind, old.similarity_fn_name, path)
    normalize = old.normalize and kind == "float32"
    if len(statistics.moments.mean) != width:
        raise UsageError(f"the statistics are of {len(statistics.moments.mean)} dimensions, but {path} has {width}")
    check_sample_count(statistics.moments.n, width, spec)
    reference, spec = (None, spec) if align_to is None else align_refit(align_to, old, spec)
    fitted = fit_sif(statistics.moments, spec) if old.pooling == "sif" else fit_map(statistics.moments, spec)
    warn_of_few(fitted, statistics, report)
    warn_of_rank(fitted, report)
    if kinds is not None:
        report_kinds(fitted, kinds, report)
    alignment = None
    if reference is not None:
        fitted, alignment = align_with(reference, fitted, statistics)
        report_alignment(alignment, reference, report)
    else:
        report_new_space(path, report)
    affine, dimension = (fitted.mean, fitted.weight), fitted.weight.shape[1]
    report.stage(f"writing {out}, and checking it")
    with staged(out, replace) as stage:
        _copy(bundle, stage)
        graph = read_bundle_graph(bundle.model)
        set_head(graph, affine, normalize, old.outputs == "both", kind)
        save_graph(graph, stage / MODEL_FILE)
        del graph
        write_whitening(stage, fitted)
        write_pooling(stage, dimension)
        rewritten = _rewritten(bundle)
        if CONFIG_FILE in old.files and CONFIG_FILE not in rewritten:
            rewrite_transformers_js(stage, (stage / EXTERNAL_DATA_FILE).is_file())
        probes = dataclasses.replace(probes, embeddings=Head.of(affine, normalize)(probes.unwhitened))
        check_rounding(probes.embeddings, kind)
        write_probes(stage, probes)
        rounded = msgspec.structs.replace(old, normalize=normalize, vectors=kind)
        manifest = _describe(rounded, describe_whitening(fitted, statistics, alignment), dimension, choice, stage, out)
        manifest = msgspec.structs.replace(manifest, files=manifest.files | rewritten)
        (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
        manifest = msgspec.structs.replace(
            manifest, parity=_prove(stage, manifest, probes, options or SessionOptions())
        )
        manifest = with_model_card(stage, manifest)
        (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    return Export(out, manifest)


def _copy(bundle: Bundle, stage: Path) -> None:
    """Copy the files that a refit does not change."""
    for name in bundle.manifest.files:
        if name not in _REPLACED:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            with (bundle.path / name).open("rb") as source, (stage / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)  # copyfile names the source in errors of the copy


def _rewritten(bundle: Bundle) -> dict[str, FileRecord]:
    """Return the records of client files that another program wrote anew: they stay those of the export.

    What such a program wrote may contradict the manifest, as a smaller maximum length does.
    """
    files = bundle.manifest.files
    names = set(changed_client_files(bundle.path, files)) & files.keys() - {POOLING_FILE, CARD_FILE}
    return {name: files[name] for name in names}


def _describe(
    old: Manifest,
    whitening: WhiteningRecord | None,
    dimension: int,
    choice: ChoiceRecord | None,
    stage: Path,
    out: Path,
) -> Manifest:
    made = {f"refit-{name}": version for name, version in versions().items() if name in ("whiten", "numpy")}
    manifest = msgspec.structs.replace(
        old,
        name=out.absolute().name,
        whitening=whitening,
        choice=choice,
        matryoshka_dimensions=(),
        published=None,
        dimension=dimension,
        versions=old.versions | made,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )
    return with_space(manifest)


def _prove(stage: Path, manifest: Manifest, probes: Probes, options: SessionOptions) -> ParityRecord:
    agreement = check_bundle(stage, Expected("", probes), options)
    gate = gate_of(manifest.precision, manifest.vectors)
    if not gate.passes(agreement):
        raise ParityError(
            f"whitened anew, the bundle misses its gate: {agreement}; wanted {gate}: texts differ too little in some "
            "direction for its precision; use a smaller --dim, --beta or more --shrinkage; no bundle was written"
        )
    first = manifest.parity.reference.split(_AGAIN)[0] if manifest.parity else "the reference"
    return parity_record(first + _AGAIN, agreement, options)
