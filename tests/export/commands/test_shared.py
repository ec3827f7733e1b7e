"""Test the lines that whiten-export and whiten refit end with."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from support.cli import ok
from whiten_export.commands.shared import summary
from whiten_runtime.bundle.manifest import ChoiceRecord, ParityRecord, read_manifest

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


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (
            "bundle-v1",
            {"choice": ChoiceRecord(why="because")},
            ("1, 4 of 4", "58.1 MB", "because", "0.0001", "79"),
        ),
        ("bundle-v1", {"layers": tuple(range(12))}, ("12 layers", "whiten embed bundles/a")),
        ("bundle-v1", {"whitening": None, "published": PUBLISHED}, ("mean", "sentence-transformers 6.2.0", "1.1e-07")),
        ("bundle-v1-int8", {}, ("0.98 and 0.99",)),
        ("bundle-v1-vectors", {}, ("0.0001", "whiten transform bundles/a")),
    ],
)
def test_the_last_lines_name_what_was_written_chosen_and_proven(
    golden: Path, name: str, changes: dict[str, object], named: tuple[str, ...]
) -> None:
    manifest = msgspec.structs.replace(read_manifest(golden / name), **changes)
    lines = summary(Path("bundles/a"), 58_100_000, manifest, 20.6)
    assert [word for word in named if word not in lines] == []
    assert max(map(len, lines.splitlines())) <= 100


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
