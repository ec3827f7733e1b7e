"""Test the id of a space: what keeps it, what changes it, and that it never changes for a bundle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_runtime.bundle.manifest import Manifest, parse_manifest, read_manifest
from whiten_runtime.bundle.records import AlignmentRecord, CorpusRecord, FileRecord, is_space
from whiten_runtime.bundle.space import directions_of, space_id, space_of

replace = msgspec.structs.replace

GOLDEN = {
    "bundle-v1": "9efc4542505bc9bc",
    "bundle-v1-int8": "9953650c1306d865",
    "bundle-v1-published": "fd149d4774440493",
    "bundle-v1-vectors": "44a44acc0f914d82",
    "bundle-v1-vectors-int8": "456c3171130ddf30",
}
"""Ids that vectors on people's disks may bear: they stay for ever."""

OTHER = FileRecord(sha256="0" * 64, bytes=1)
ONTO = AlignmentRecord(space="0" * 16, median_cosine=0.9, self_recall=1.0, sentences=10)


@pytest.fixture(scope="module")
def manifest(golden: Path) -> Manifest:
    return read_manifest(golden / "bundle-v1")


@pytest.mark.parametrize(("name", "space"), GOLDEN.items())
def test_the_id_of_a_bundle_never_changes(golden: Path, name: str, space: str) -> None:
    assert space_of(read_manifest(golden / name)) == space


def test_a_layer_without_weight_is_as_none(manifest: Manifest) -> None:
    one = replace(manifest, layers=(1,), layer_weights=(1.0,))
    assert space_id(replace(manifest, layers=(1, 4), layer_weights=(1.0, 0.0))) == space_id(one)
    assert space_id(replace(manifest, layers=(1, 4), layer_weights=(0.9, 0.1))) != space_id(one)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_id_can_be_computed_as_the_format_describes_it(golden: Path, name: str) -> None:
    """A reader in another language has docs/bundle-format.md alone."""
    stored = json.loads((golden / name / "whiten.json").read_text("utf-8"))
    document = {
        "weights": stored["source"]["weights_sha256"],
        "merged_into": stored["source"]["merged_into"],
        "tokenizer": stored["files"].get("tokenizer.json", {}).get("sha256"),
        **{name: stored[name] for name in ("input", "layers", "layer_weights", "pooling", "include_prompt", "modules")},
        **{name: stored[name] for name in ("prompts", "default_prompt_name", "route", "truncation_side")},
        **{name: stored[name] for name in ("normalize", "dimension")},
        "map": None,
    }
    if whitening := stored["whitening"]:
        fields = ("method", "common_components", "beta", "shrinkage_estimator", "eigenvalue_floor")
        document["map"] = {
            **{field: whitening[field] for field in fields},
            "shrinkage": whitening["shrinkage"] if whitening["shrinkage_estimator"] == "fixed" else None,
            "corpus": sorted([corpus["sha256"], corpus["sentences"]] for corpus in whitening["corpus"]),
            "vectors": {"max_seq_length": stored["max_seq_length"], "fitted_at": []},
        }
    if stored["vectors"] != "float32":
        document["vectors"] = stored["vectors"]
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(content.encode()).hexdigest()[:16] == GOLDEN[name]


def changed(manifest: Manifest, change: dict[str, Any]) -> Manifest:
    """Return the manifest with fields set; those of its source and whitening are objects in `change`."""
    parts = {
        name: replace(getattr(manifest, name), **change[name])
        for name in ("source", "whitening")
        if isinstance(change.get(name), dict)
    }
    return replace(manifest, **change | parts)


@pytest.mark.parametrize(
    "change",
    [
        {"source": {"weights_sha256": "0" * 64}},
        {"source": {"merged_into": "bert"}},
        {"layers": (1, 3)},
        {"layer_weights": (1.0, 2.0)},
        {"pooling": "cls"},
        {"include_prompt": False},
        {"modules": ("LayerNorm",)},
        {"prompts": {"query": "q: "}},
        {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        {"route": "query"},
        {"truncation_side": "left"},
        {"normalize": True},
        {"vectors": "int8"},
        {"dimension": 8},
        {"max_seq_length": 8},
        {"whitening": None},
        {"whitening": {"method": "zca"}},
        {"whitening": {"common_components": 1}},
        {"whitening": {"beta": 0.5}},
        {"whitening": {"shrinkage_estimator": "fixed"}},
        {"whitening": {"eigenvalue_floor": 1e-3}},
        {"whitening": {"corpus": (CorpusRecord(name="corpus.txt", sha256="0" * 64, sentences=400),)}},
        {"whitening": {"alignment": ONTO}},
        {"files": {"tokenizer.json": OTHER}},
    ],
    ids=str,
)
def test_what_decides_the_coordinates_changes_the_id(manifest: Manifest, change: dict[str, Any]) -> None:
    assert space_id(changed(manifest, change)) != space_id(manifest)


def test_the_default_prompt_and_a_fixed_shrinkage_change_the_id(manifest: Manifest) -> None:
    queries = changed(manifest, {"prompts": {"query": "q: "}})
    halves = [changed(manifest, {"whitening": {"shrinkage_estimator": "fixed", "shrinkage": α}}) for α in (0.5, 0.25)]
    assert len({space_id(one) for one in (queries, replace(queries, default_prompt_name="query"), *halves)}) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"space": "0" * 16},
        {"precision": "int8"},
        {"target": "cuda"},
        {"outputs": "both"},
        {"opset": 99},
        {"versions": {}},
        {"parity": None},
        {"layer_weights": (2.0, 2.0)},
        {"similarity_fn_name": "dot"},
        {"source": {"model": "other", "checkpoint": "a/b", "revision": "1", "sentence_similarity": True}},
        {"whitening": {"shrinkage": 0.125, "rank": 31, "isotropy_after": None, "sample": 3}},
    ],
    ids=str,
)
def test_what_leaves_the_coordinates_alone_keeps_the_id(manifest: Manifest, change: dict[str, Any]) -> None:
    assert space_id(changed(manifest, change)) == space_id(manifest)


def test_the_precision_of_the_statistics_counts_where_axes_turn(manifest: Manifest) -> None:
    def refitted(method: str, fitted_at: str | None) -> Manifest:
        corpus = (CorpusRecord(name="c", sha256="0" * 64, sentences=9, fitted_at=fitted_at),)  # type: ignore[arg-type]
        return changed(manifest, {"whitening": {"method": method, "corpus": corpus}})

    for method, same in (("pca", False), ("pca-cor", False), ("zca", True), ("zca-cor", True), ("cholesky", True)):
        assert (space_id(refitted(method, "int8")) == space_id(refitted(method, None))) is same
    assert space_id(refitted("pca", "int8")) != space_id(refitted("pca", "fp16"))


@pytest.mark.parametrize("whitening", [None, {"method": "zca"}, {"method": "cholesky"}, {"method": "none"}])
def test_the_length_counts_only_where_axes_turn(manifest: Manifest, whitening: dict[str, Any] | None) -> None:
    steady = changed(manifest, {"whitening": whitening})
    assert space_id(steady) == space_id(replace(steady, max_seq_length=8))


def test_files_other_than_the_tokenizer_keep_the_id(manifest: Manifest) -> None:
    files = {name: record if name == "tokenizer.json" else OTHER for name, record in manifest.files.items()}
    assert space_id(replace(manifest, files=files)) == space_id(manifest)


@given(
    weights=st.tuples(*[st.floats(0.01, 100)] * 2),
    scale=st.sampled_from([0.25, 0.5, 2.0, 4.0]),
    beta=st.floats(0, 1),
    prompts=st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_the_id_survives_writing_and_reading_and_the_scale_of_the_weights(
    golden: Path, weights: tuple[float, float], scale: float, beta: float, prompts: dict[str, str]
) -> None:
    one = changed(
        read_manifest(golden / "bundle-v1"),
        {"layer_weights": weights, "whitening": {"beta": beta}, "prompts": prompts},
    )
    space = space_id(one)
    assert is_space(space)
    assert space_id(parse_manifest(one.to_json(), golden / "whiten.json")) == space
    assert space_id(replace(one, layer_weights=tuple(scale * weight for weight in weights))) == space
    assert space_id(replace(one, prompts=dict(reversed(prompts.items())))) == space


def test_directions_are_those_of_vectors_of_any_length(manifest: Manifest) -> None:
    unit, steps = replace(manifest, normalize=True, space=None), replace(manifest, vectors="int8", space=None)
    assert len({space_of(one) for one in (manifest, unit, steps)}) == 3
    assert {directions_of(one) for one in (manifest, unit, steps)} == {space_of(manifest)}
    assert directions_of(changed(steps, {"whitening": {"method": "zca"}})) != space_of(manifest)
