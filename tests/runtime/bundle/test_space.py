"""Test the id of a space and a manifest's own hash: what keeps them, what changes them, and what is noticed."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from whiten import BundleError, IntegrityError
from whiten_runtime.bundle.files import HASH_FIELD, own_hash, with_own_hash
from whiten_runtime.bundle.manifest import (
    AlignmentRecord,
    CorpusRecord,
    FileRecord,
    Manifest,
    is_space,
    parse_manifest,
    read_manifest,
)
from whiten_runtime.bundle.space import space_id, space_of

GOLDEN = {
    "bundle-v1": "9efc4542505bc9bc",
    "bundle-v1-int8": "9953650c1306d865",
    "bundle-v1-published": "fd149d4774440493",
    "bundle-v1-vectors": "44a44acc0f914d82",
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
        {"source": {"network_sha256": "0" * 64}},
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
        {"tokenizer_sha256": "0" * 64},
    ],
    ids=str,
)
def test_what_decides_the_coordinates_changes_the_id(manifest: Manifest, change: dict[str, Any]) -> None:
    assert space_id(changed(manifest, change)) != space_id(manifest)


def test_the_name_of_an_adapters_base_counts_only_where_no_network_is_named(manifest: Manifest) -> None:
    here, moved = (changed(manifest, {"source": {"merged_into": name}}) for name in ("base", "org/base@main"))
    assert space_id(here) != space_id(moved)
    named = [changed(one, {"source": {"network_sha256": "0" * 64}}) for one in (here, moved)]
    assert space_id(named[0]) == space_id(named[1])


def test_the_bytes_of_a_tokenizer_count_only_where_its_meaning_is_not_known(manifest: Manifest) -> None:
    named = replace(manifest, tokenizer_sha256="0" * 64)
    assert space_id(replace(named, files={"tokenizer.json": OTHER})) == space_id(named)
    assert space_id(replace(named, tokenizer_sha256="1" * 64)) != space_id(named)


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


@pytest.fixture
def written(golden: Path, tmp_path: Path) -> Path:
    """A manifest alone in its folder."""
    return Path(shutil.copy(golden / "bundle-v1-vectors" / "whiten.json", tmp_path))


def without_hash(content: bytes) -> bytes:
    return b"\n".join(line for line in content.splitlines() if HASH_FIELD.encode() not in line)


def test_every_flip_of_a_bit_is_refused(written: Path) -> None:
    content, accepted = written.read_bytes(), []
    begin = content.index(HASH_FIELD.encode())
    digits = range(begin, begin + 100)  # bit 5 turns small letters of the hash into capitals
    for position in range(len(content)):
        for bit in {position % 8, 5} if position in digits else {position % 8}:
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            written.write_bytes(flipped)
            try:
                read_manifest(written.parent)
                accepted.append((position, bit))
            except BundleError as error:
                assert "\n" not in str(error)
    assert accepted == []


def test_the_hash_is_that_of_the_file_with_zeros_in_its_place(written: Path) -> None:
    content = written.read_bytes()
    stated = json.loads(content)[HASH_FIELD]
    assert list(json.loads(content))[:3] == ["format_version", HASH_FIELD, "name"]
    assert stated == own_hash(content)
    assert stated == hashlib.sha256(content.replace(stated.encode(), b"0" * 64)).hexdigest()


def test_the_first_field_of_that_name_counts_even_if_a_prompt_is_called_so(golden: Path, tmp_path: Path) -> None:
    manifest = replace(read_manifest(golden / "bundle-v1"), prompts={HASH_FIELD: "0" * 64})
    (tmp_path / "whiten.json").write_bytes(manifest.to_json())
    assert read_manifest(tmp_path) == manifest
    assert manifest.prompts == {HASH_FIELD: "0" * 64}


def test_an_edit_by_hand_is_refused_with_what_to_do(written: Path) -> None:
    content = written.read_bytes()
    edited = content.replace(b'"name": "bundle-v1-vectors"', b'"name": "mine"')
    written.write_bytes(edited)
    with pytest.raises(IntegrityError, match=f"{HASH_FIELD} is .* delete the line of {HASH_FIELD}"):
        read_manifest(written.parent)
    written.write_bytes(without_hash(edited))
    assert read_manifest(written.parent).name == "mine"
    written.write_bytes(with_own_hash(edited))
    assert read_manifest(written.parent).name == "mine"


@pytest.mark.parametrize("value", ['""', "0", '"sha"', '"' + "A" * 64 + '"', '["' + "0" * 64 + '"]'])
def test_what_is_no_hash_is_refused(written: Path, value: str) -> None:
    stated = json.loads(written.read_bytes())[HASH_FIELD]
    written.write_bytes(written.read_bytes().replace(f'"{stated}"'.encode(), value.encode()))
    with pytest.raises(IntegrityError, match=HASH_FIELD):
        read_manifest(written.parent)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"name"', b'"colour": "blue", "name"', "has the field 'colour', which this version .*; upgrade whiten"),
        (b'"beta"', b'"gamma": 1, "beta"', "has the field 'whitening.gamma'"),
        (b'"name"', b'"name": "other", "name"', "the field 'name' is there twice"),
        (b'"rank"', b'"rank": 3, "rank"', "the field 'rank' is there twice"),
        (b'"include_prompt"', b'"include_promqt"', "has the field 'include_promqt'"),
        (b'"dimension": 6', b'"dimension": NaN', "not a manifest"),
        (
            b'"vectors": "float32"',
            b'"vectors": "int8"',
            "vectors is 'int8', which only versions before 0.5 read; .*again",
        ),
        (b'"outputs": "whitened"', b'"outputs": "all"', "outputs is 'all', which only versions before 0.5 read"),
        (b'"stepped": null', b'"stepped": 0.0', "has the field 'parity.stepped'"),
    ],
)
def test_fields_that_are_unknown_or_there_twice_are_refused(
    golden: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    content = without_hash((golden / "bundle-v1-vectors" / "whiten.json").read_bytes())
    assert old in content
    (tmp_path / "whiten.json").write_bytes(content.replace(old, new, 1))
    with pytest.raises(BundleError, match=message) as caught:
        read_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_one_of_very_many_fields_twice_is_refused_at_once(golden: Path, tmp_path: Path) -> None:
    fields = b"".join(b'"%d": 0, ' % number for number in range(100_000))
    content = without_hash((golden / "bundle-v1-vectors" / "whiten.json").read_bytes())
    (tmp_path / "whiten.json").write_bytes(content.replace(b'"rank"', fields + b'"rank": 3, "rank"', 1))
    with pytest.raises(BundleError, match="the field 'rank' is there twice"):
        read_manifest(tmp_path)
