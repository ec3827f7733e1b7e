"""Test the lines that whiten-export and whiten refit end with."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from support.cli import ok
from whiten_export.commands.shared import summary
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.records import ChoiceRecord, ParityRecord

PUBLISHED = ParityRecord(
    reference="sentence-transformers 6.2.0, float32",
    provider="CPUExecutionProvider",
    vectors=80,
    min_cosine=1.0,
    mean_cosine=1.0,
    max_difference=1.1e-7,
    max_norm_error=2e-7,
    mean_norm_error=1e-7,
)


def lines_of(manifest: Manifest, **changes: object) -> list[str]:
    changed = msgspec.structs.replace(manifest, **changes)
    return summary(Path("bundles/a"), 58_100_000, changed, 20.6).splitlines()


def test_what_was_chosen_gained_and_proven_and_what_comes_next(golden: Path) -> None:
    manifest = read_manifest(golden / "bundle-v1")
    assert manifest.parity is not None
    assert manifest.whitening is not None
    first, chosen, gained, proven, following = lines_of(manifest, choice=ChoiceRecord(why="because"))
    assert first == "bundles/a: layers 1, 4 of 4, 32 numbers per text (58.1 MB, 21 s)"
    assert chosen == f"  chosen   {manifest.whitening.description}: because"
    assert gained.startswith("  gained   IsoScore 0.")
    assert gained.endswith(f", on {manifest.whitening.n_samples:,} sentences")
    program, near = manifest.parity.reference.split(",")[0], f"{manifest.parity.max_difference:.1e}"
    assert proven == f"  proven   equals {program} within {near} of the norm, 79 vectors (bound 0.0001)"
    assert following == '  next     whiten embed bundles/a "Your text."   (Python: whiten.Encoder)'


def test_a_model_as_published_is_compared_with_the_program_that_it_was_published_for(golden: Path) -> None:
    manifest = read_manifest(golden / "bundle-v1")
    _, chosen, proven, published, _ = lines_of(manifest, whitening=None, published=PUBLISHED, normalize=True)
    assert chosen == "  chosen   as published: mean pooling, divided by the norm, not whitened"
    assert published.endswith(" equals sentence-transformers 6.2.0 within 1.1e-07 of the norm")
    assert proven.split(" equals ")[1].split(" within ")[0] == published.split(" equals ")[0].strip()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bundle-v1-int8", "(bounds 0.98 and 0.99)"),
        ("bundle-v1-vectors", "(bound 0.0001)"),
    ],
)
def test_bounds_are_those_of_the_gate(golden: Path, name: str, said: str) -> None:
    manifest = read_manifest(golden / name)
    proven = next(line for line in lines_of(manifest) if line.startswith("  proven"))
    assert proven.endswith(said)
    assert max(map(len, lines_of(manifest))) <= 100
    assert ("whiten transform" in lines_of(manifest)[-1]) == (manifest.input == "vectors")


def test_many_layers_are_counted(golden: Path) -> None:
    manifest = read_manifest(golden / "bundle-v1")
    assert lines_of(manifest, layers=tuple(range(12)))[0].startswith("bundles/a: 12 layers of 4, 32 numbers")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_export_prints_eight_lines_of_a_hundred_characters_at_most(
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--layers", "0,1", "--corpus", corpus_file, "--precision", precision, "--out", "b")
    result = ok("export", checkpoint("bert"), *options)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("· reading")]  # the path of the model
    assert len(lines) <= 7, result.stderr
    assert max(map(len, lines)) <= 100, result.stderr
