"""Test reading the seven tasks in every layout in which they are distributed."""

from pathlib import Path

import numpy as np
import pytest

from support.sts import Rows, rows, write_paper_layout
from whiten import DataError, UsageError, WhitenError
from whiten_evaluation.commands.eval import parse_tasks
from whiten_evaluation.sts import SUBSETS, read_sts

PAIRS = rows(12, 1)


def write_semeval(folder: Path, subset: str, made: Rows, blank: tuple[int, ...] = (), prefix: str = "STS") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}.input.{subset}.txt").write_text("".join(f"{a}\t{b}\n" for a, b, _ in made), "utf-8")
    scores = ["" if index in blank else str(score) for index, (_, _, score) in enumerate(made)]
    (folder / f"{prefix}.gs.{subset}.txt").write_text("\n".join(scores) + "\n", "utf-8")


def got(folder: Path, task: str) -> list[Rows]:
    data = read_sts(folder, (task,))
    return [
        list(zip(subset.first, subset.second, subset.scores.tolist(), strict=True)) for subset in data.tasks[0].subsets
    ]


@pytest.mark.parametrize("task", SUBSETS)
def test_read_layout_of_whiteningbert(tmp_path: Path, task: str) -> None:
    content = write_paper_layout(tmp_path / "deep" / "er", (task,))
    assert got(tmp_path, task) == list(content.values())


@pytest.mark.parametrize("folder", ["STS14-en-test", "2014", "STS2015/sts2014-en"])
def test_read_layout_of_semeval(tmp_path: Path, folder: str) -> None:
    for number, subset in enumerate(SUBSETS["STS14"]):
        write_semeval(tmp_path / folder, subset, rows(12, number))
    assert got(tmp_path, "STS14") == [rows(12, number) for number in range(6)]


def test_pairs_without_a_score_are_left_out(tmp_path: Path) -> None:
    for subset in SUBSETS["STS16"]:
        write_semeval(tmp_path, subset, PAIRS, (0, 5, 11), "STS2016")
    kept = [pair for index, pair in enumerate(PAIRS) if index not in (0, 5, 11)]
    assert got(tmp_path, "STS16") == [kept] * 5


def test_years_are_distinguished_and_training_sets_are_not_read(tmp_path: Path) -> None:
    for year, seed in ((13, 1), (14, 2), (15, 3)):
        for subset in SUBSETS[f"STS{year}"]:
            write_semeval(tmp_path / f"STS{year}-en-test", subset, rows(12, seed))
    for folder in ("STS12-en-train", "STS2012/trial"):
        for subset in SUBSETS["STS12"]:
            write_semeval(tmp_path / folder, subset, rows(12, 9))
    data = read_sts(tmp_path, ("STS12", "STS13", "STS14", "STS15"))
    assert list(data.absent) == ["STS12"]
    assert [task.subsets[0].first[0] for task in data.tasks] == [rows(12, seed)[0][0] for seed in (1, 2, 3)]


@pytest.mark.parametrize("layout", ["SICK_test_annotated.txt", "SICK.txt"])
def test_read_released_files_of_sick(tmp_path: Path, layout: str) -> None:
    columns = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]
    parts = [[str(n), a, b, str(score), "NEUTRAL"] for n, (a, b, score) in enumerate(PAIRS)]
    if layout == "SICK.txt":
        columns, parts = [*columns, "SemEval_set"], [[*row, "TEST"] for row in parts]
        parts.insert(3, ["x", "of the training set", "and this", "1", "NEUTRAL", "TRAIN"])
    (tmp_path / layout).write_text("\r\n".join("\t".join(row) for row in [columns, *parts]) + "\r\n", "utf-8")
    assert got(tmp_path, "SICK-R") == [PAIRS]


def test_read_released_file_of_sts_benchmark(tmp_path: Path) -> None:
    lines = [f"main-news\tMSRpar\t2012test\t{n}\t{score}\t{a}\t{b}" for n, (a, b, score) in enumerate(PAIRS)]
    (tmp_path / "sts-test.csv").write_text("\n".join(lines), "utf-8")
    (tmp_path / "sts-dev.csv").write_text("\n".join(lines[:11]), "utf-8")
    assert got(tmp_path, "STS-B") == [PAIRS]


def test_quotes_and_other_line_separators_stay_in_the_text(tmp_path: Path) -> None:
    odd = [(f'"quoted" {n}', 'a " alone\x85\u2028and on', float(n % 5)) for n in range(12)]
    lines = [f"a\tb\tc\td\t{score}\t{a}\t{b}" for a, b, score in odd]
    (tmp_path / "sts-b-test.csv").write_text("\n".join(lines), "utf-8")
    assert got(tmp_path, "STS-B") == [odd]


def test_absent_and_incomplete_tasks_are_reported(tmp_path: Path) -> None:
    write_paper_layout(tmp_path, ("STS-B", "STS13"))
    (tmp_path / "sts13.OnWN-test.csv").unlink()
    data = read_sts(tmp_path)
    assert [task.name for task in data.tasks] == ["STS-B"]
    assert not data.complete
    assert data.absent["STS13"] == ("OnWN",)
    assert len(list(data.missing())) == 6


def test_unknown_tasks_and_empty_directories_are_refused(tmp_path: Path) -> None:
    assert parse_tasks("sts12, stsb,SICK_R", SUBSETS) == ("STS-B", "SICK-R", "STS12")
    with pytest.raises(UsageError, match="'sts17'"):
        parse_tasks("sts17", SUBSETS)
    (tmp_path / "my-pairs.csv").write_text("sentence1,sentence2,score\na,b,1\n", "utf-8")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=str(folder)):
            read_sts(folder)


NUMBERS = ("z", "", "1_0", "1e400", "nan", "inf", "True", "\uff13.5", "\u0663", "0x1", "4,5")
"""What no score is; `float` takes some of it."""
SICK = "sentence_A\tsentence_B\trelatedness_score"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("sickr-test.csv", "a\tb\tc\td\t1\tx\ty\n" * 11 + "a\tb\tc\td\tmuch\tx\ty\n", "line 12"),
        ("SICK.txt", "one\ttwo\n", "'one', 'two'"),
        ("SICK.txt", "", "SICK.txt"),
        *(
            ("SICK.txt", f"{SICK}\tSemEval_set\t{column}\nx\ty\t1\tTEST\tz\n", f"'{column}'")
            for column in ("sentence_A", "relatedness_score", "SemEval_set")
        ),
        ("SICK_test_annotated.txt", f"{SICK}\nx\ty\n", "line 2"),
        ("SICK_test_annotated.txt", f"{SICK}\nx\ty\t1\t2\n", "line 2"),
        *(("SICK_test_annotated.txt", f"{SICK}\nx\ty\t{number}\n", f"'{number}'") for number in NUMBERS),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, name: str, content: str, named: str) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(WhitenError, match=named) as caught:
        read_sts(tmp_path, ("SICK-R",))
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("form", ["{}", ".{}", "{}.{}", "{}e", "1e{}", " {} "])
def test_scores_of_very_many_digits_are_refused_at_once(tmp_path: Path, form: str) -> None:
    """A pattern that goes back in the digits takes minutes for them."""
    (tmp_path / "SICK.txt").write_text(f"{SICK}\nx\ty\t{form.replace('{}', '1' * 100_000)}x\n")
    with pytest.raises(DataError, match="line 2"):
        read_sts(tmp_path, ("SICK-R",))


@pytest.mark.parametrize(
    ("sentences", "scores"),
    [("a\tb\n", "1\n2\n"), ("a b\n", "1\n"), ("a\tb\n", "\n"), *(("a\tb\n", f"{number}\n") for number in NUMBERS[2:])],
)
def test_malformed_semeval_files_are_refused(tmp_path: Path, sentences: str, scores: str) -> None:
    folder = tmp_path / "STS13"
    for subset in SUBSETS["STS13"]:
        write_semeval(folder, subset, PAIRS)
    (folder / "STS.input.FNWN.txt").write_text(sentences)
    (folder / "STS.gs.FNWN.txt").write_text(scores, "utf-8")
    with pytest.raises(DataError, match="FNWN"):
        read_sts(tmp_path, ("STS13",))


def test_public_files_have_the_published_numbers_of_pairs(public_data: Path) -> None:
    data = read_sts(public_data)
    assert {task.name: sum(len(subset.scores) for subset in task.subsets) for task in data.tasks} == {
        "STS-B": 1379,
        "SICK-R": 4927,
        "STS12": 3108,
        "STS14": 3750,
        "STS15": 3000,
    }
    assert list(data.absent) == ["STS13", "STS16"]
    assert all(np.isfinite(subset.scores).all() for task in data.tasks for subset in task.subsets)
