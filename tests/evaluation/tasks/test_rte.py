"""Test entailment by cosine: the choice of the file, the scores, and the command."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.cli import invoke
from support.corpus import sentences
from whiten_evaluation.commands.classification import rte
from whiten_evaluation.embedding import TextVectors, WhiteningSource, embed_texts
from whiten_evaluation.tasks.classification import score_entailment
from whiten_evaluation.tasks.classification_files import Split, read_entailment
from whiten_runtime.errors import DataError, UsageError
from whiten_whitening.maps import fit_map
from whiten_whitening.moments import Moments

HEADER = "index\tsentence1\tsentence2\tlabel"


def write(path: Path, *lines: str, ending: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + ending for line in lines).encode())
    return path


run = partial(invoke, rte)


def made(folder: Path, count: int) -> Path:
    texts = sentences(2 * count)
    lines = [
        f"{n}\t{a}\t{b}\t{'entailment' if n % 3 else 'not_entailment'}".replace("\n", " ")
        for n, (a, b) in enumerate(zip(texts[:count], texts[count:], strict=True))
    ]
    write(folder / "dev.tsv", HEADER, *lines)
    return folder


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    lines = ("label\tsentence2\tindex\tsentence1", 'entailment\tB\t0\t"A\x85a', "not_entailment\tD\t1\tC")
    write(tmp_path / "dev.tsv", *lines, ending="\r\n")
    pairs, _ = read_entailment(tmp_path)
    assert pairs.texts == ('"A\x85a', "C")
    assert pairs.second == ("B", "D")
    assert pairs.labels.tolist() == [1, 0]


def test_file_in_an_rte_folder_is_preferred(tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", "another\ttask")
    write(tmp_path / "glue" / "Rte" / "dev.tsv", HEADER, "0\tA\tB\tentailment")
    write(tmp_path / "glue" / "sst" / "dev.tsv", "another\ttask")
    assert read_entailment(tmp_path)[1] == tmp_path / "glue" / "Rte" / "dev.tsv"


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["sentence\tlabel"], 1),
        ([HEADER, "0\tA\tB\tentailment", "1\tC\tnot_entailment"], 3),
        ([HEADER, "0\tA\tB\t1"], 2),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, lines: list[str], number: int) -> None:
    path = write(tmp_path / "dev.tsv", *lines)
    with pytest.raises(DataError) as caught:
        read_entailment(tmp_path)
    assert str(caught.value).startswith(f"{path}: line {number} is {lines[number - 1]!r}; wanted ")


def test_missing_directory_file_and_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        read_entailment(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no dev\.tsv"):
        read_entailment(tmp_path)
    write(tmp_path / "dev.tsv", HEADER)
    with pytest.raises(DataError, match="has no pairs"):
        read_entailment(tmp_path)


def test_entailment_is_a_cosine_above_the_threshold() -> None:
    angles = np.radians([0, 59, 61, 180])
    ends = np.column_stack([np.cos(angles), np.sin(angles)]) * [[1], [3], [0.5], [2]]
    vectors = TextVectors({"start": 0, "a": 1, "b": 2, "c": 3, "d": 4}, np.vstack([[7, 0], ends]).astype(np.float32))
    answers = np.array([1, 0, 0, 1])
    pairs = Split(("start",) * 4, ("a", "b", "c", "d"), answers)
    found = score_entailment(pairs, vectors, WhiteningSource("none"))
    assert (found.n, found.accuracy, found.majority, found.entailed) == (4, 50, 50, 50)
    assert score_entailment(pairs, vectors, WhiteningSource("none"), 0.6).accuracy == 75


def test_command_scores_with_each_whitening(tiny_bundle: Path, tmp_path: Path) -> None:
    data = made(tmp_path, 60)
    table = run(tiny_bundle, "--data", data)
    assert table.exit_code == 0, table.stderr
    assert table.stdout.split("\n")[0].split() == ["bundle", "pairs", "accuracy", "majority", "entailed"]
    pairs, file = read_entailment(data)
    for source in ("bundle", "task", "none"):
        result = run(tiny_bundle, "--data", data, "--fit-on", source, "--json", "--threshold", "0.25")
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        assert (document["whitening"], document["threshold"], document["file"]) == (source, 0.25, str(file))
        vectors = embed_texts(tiny_bundle, pairs.sentences, WhiteningSource(source))  # type: ignore[arg-type]
        first, second = vectors.of(pairs.texts), vectors.of(pairs.second)
        if source == "task":  # fitted on both columns
            white = fit_map(Moments.of(np.concatenate([first, second])))
            first, second = ((part - white.mean) @ white.weight for part in (first, second))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        decided = (first * second).sum(axis=1) / lengths > 0.25
        score = document["bundles"][0]["score"]
        assert score["accuracy"] == pytest.approx(100 * np.mean(decided == pairs.labels))
        assert score["entailed"] == pytest.approx(100 * decided.mean())
        assert (score["n"], round(score["majority"], 2)) == (60, 66.67)
    csv = run(tiny_bundle, tiny_bundle, "--data", data, "--csv")
    assert [line.split(",")[1] for line in csv.stdout.splitlines()] == ["pairs", "60", "60"]


def test_the_public_dev_split_has_the_published_majority(shared_data: Path) -> None:
    pairs, _ = read_entailment(shared_data)
    assert len(pairs.texts) == 277
    assert round(100 * pairs.labels.mean(), 1) == 52.7
