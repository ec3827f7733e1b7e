"""Test that no mutant of a bundle raises an untyped error, crashes, hangs, or gives other vectors and passes verify."""

import json
import shutil
from pathlib import Path

import pytest

from support.mutant_run import LONGEST, Outcome, run_mutants
from support.mutants import MANIFEST, mutant, own_hash_renewed, read_files, rehash
from whiten_runtime import Encoder
from whiten_runtime.bundle.manifest import read_manifest

pytestmark = pytest.mark.slow

COUNT, PROCESSES = 10_000, 2
FORGED = "other, passes"
"""Verdict on a mutant that gives other vectors and passes verify. Where hashes were recomputed, an author did that:
verify detects accidents, not authors."""


@pytest.fixture(scope="module")
def bundle(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden bundle with a manifest as it is written now."""
    path = Path(shutil.copytree(golden / "bundle-v1", tmp_path_factory.mktemp("mutants") / "base"))
    (path / MANIFEST).write_bytes(read_manifest(path).to_json())
    return path


@pytest.fixture(scope="module")
def outcome(bundle: Path, golden: Path) -> Outcome:
    found = run_mutants(bundle, golden / "bundle-v1-int8", bundle.with_name("mutants"), COUNT, PROCESSES)
    print(found.table())
    return found


def test_every_mutant_was_judged(outcome: Outcome) -> None:
    assert [record["number"] for record in outcome.found] == list(range(COUNT))


@pytest.mark.parametrize("verdict", ["untyped", "crash", "hang"])
def test_no_mutant_does_worse_than_being_refused(outcome: Outcome, verdict: str) -> None:
    assert outcome.having(verdict) == []
    assert max(record["seconds"] for record in outcome.found) < LONGEST


def test_no_accident_gives_other_vectors_and_passes_verify(outcome: Outcome) -> None:
    assert outcome.having(FORGED, rehashed=False) == []


def test_many_mutants_reach_the_layers_behind_the_hashes(outcome: Outcome) -> None:
    refused = outcome.having("refused", rehashed=True)
    reasons = {record["why"].split(":")[0] for record in refused}
    assert {"BundleError", "UnsafeModelError"} <= reasons
    assert any("onnxruntime does not accept it" in record["why"] for record in refused)
    assert any("not a tokenizer" in record["why"] for record in refused)


def test_a_rehashed_bundle_that_was_not_changed_opens(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    content = rehash(read_files(bundle))
    assert content is not None
    (copy / MANIFEST).write_bytes(content)
    with Encoder(copy) as encoder:
        encoder.verify()
    assert json.loads(content) == json.loads((bundle / MANIFEST).read_bytes()) | {
        name: value for name, value in json.loads(content).items() if name == "manifest_sha256"
    }
    assert own_hash_renewed(content) == content


def test_a_number_makes_the_same_mutant_each_time(bundle: Path, golden: Path) -> None:
    files, others = read_files(bundle), read_files(golden / "bundle-v1-int8")
    for number in range(50):
        first, second = (mutant(files, others, number) for _ in range(2))
        assert first == second
        assert any(files[name] != content for name, content in first.changed.items())
