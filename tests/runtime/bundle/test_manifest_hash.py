"""Test that a manifest's own hash notices every change of its bytes, and that an edit by hand leaves it out."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from whiten import BundleError, IntegrityError
from whiten_runtime.bundle.files import HASH_FIELD, own_hash, with_own_hash
from whiten_runtime.bundle.manifest import read_manifest


@pytest.fixture
def written(golden: Path, tmp_path: Path) -> Path:
    """A manifest alone in its folder."""
    return Path(shutil.copy(golden / "bundle-v1-vectors-int8" / "whiten.json", tmp_path))


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
    edited = content.replace(b'"name": "bundle-v1-vectors-int8"', b'"name": "mine"')
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
        (b'"dimension": 8', b'"dimension": NaN', "not a manifest"),
    ],
)
def test_fields_that_are_unknown_or_there_twice_are_refused(
    golden: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    content = without_hash((golden / "bundle-v1-vectors-int8" / "whiten.json").read_bytes())
    assert old in content
    (tmp_path / "whiten.json").write_bytes(content.replace(old, new, 1))
    with pytest.raises(BundleError, match=message) as caught:
        read_manifest(tmp_path)
    assert "\n" not in str(caught.value)
