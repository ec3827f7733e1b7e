"""Test reading SentEval's data sets and RTE in every layout and encoding in which they are distributed."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from whiten_evaluation.classification import TaskName, lines_of, read_tasks
from whiten_runtime.errors import DataError, WhitenError

PARAPHRASE_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
RTE_HEADER = "index\tsentence1\tsentence2\tlabel"


def write(path: Path, *lines: str, encoding: str = "utf-8", ending: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + ending for line in lines).encode(encoding))
    return path


@pytest.mark.parametrize(
    ("name", "ones", "zeros"),
    [
        ("MR", "rt-polarity.pos", "rt-polarity.neg"),
        ("CR", "custrev.pos", "custrev.neg"),
        ("SUBJ", "subj.objective", "subj.subjective"),
        ("MPQA", "a/b/mpqa.pos", "a/mpqa.neg"),
    ],
)
def test_read_tasks_with_one_file_per_class(tmp_path: Path, name: TaskName, ones: str, zeros: str) -> None:
    write(tmp_path / ones, "good one ", "", "fine", encoding="latin-1")
    write(tmp_path / "x/y/z" / ones, "deeper files of the same name are not read")
    write(tmp_path / zeros, "très mauvais", encoding="latin-1", ending="\r\n")
    [task], absent = read_tasks(tmp_path, [name])
    assert absent == {}
    assert (task.name, task.test, task.dev, task.pairs) == (name, None, None, False)
    assert task.train.texts == ("good one", "", "fine", "très mauvais")
    np.testing.assert_array_equal(task.train.labels, [1, 1, 1, 0])
    assert task.sentences == task.train.texts


@pytest.mark.parametrize("files", [("TREC.train", "TREC.test"), ("x/train_5500.label", "x/TREC_10.label")])
def test_read_trec(tmp_path: Path, files: tuple[str, str]) -> None:
    write(tmp_path / files[0], "NUM:dist How far : is it ?", "ABBR:exp What is naïve ?", encoding="latin-1")
    write(tmp_path / files[1], "DESC:def What is it ?")
    [task], _ = read_tasks(tmp_path, ["TREC"])
    assert task.train.texts == ("How far : is it ?", "What is naïve ?")
    assert [task.classes[label] for label in task.train.labels] == ["NUM", "ABBR"]
    assert task.test is not None
    assert task.sentences == (*task.train.texts, "What is it ?")


@pytest.mark.parametrize("layout", ["kim", "senteval, label first", "senteval, label last"])
def test_read_sst5(tmp_path: Path, layout: str) -> None:
    for split, label in (("train", 4), ("dev", 0), ("test", 2)):
        path = tmp_path / (f"stsa.fine.{split}" if layout == "kim" else f"SST/fine/sentiment-{split}")
        write(path, f"of {split}\t{label}" if layout.endswith("last") else f"{label} of {split}")
        write(tmp_path / f"SST/binary/sentiment-{split}", "not this\t1")
    [task], _ = read_tasks(tmp_path, ["SST5"])
    assert task.dev is not None
    assert task.test is not None
    splits = (task.train, task.dev, task.test)
    assert [(split.texts, split.labels.tolist()) for split in splits] == [
        (("of train",), [4]),
        (("of dev",), [0]),
        (("of test",), [2]),
    ]
    assert task.sentences == ("of train", "of dev", "of test")


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 0, 3)])
def test_read_mrpc_with_byte_order_mark_and_quotes_by_the_names_of_its_columns(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    lines = (PARAPHRASE_HEADER, '1\t7\t8\t"He said\tHe did "say"', "0\t9\t10\tNo\tYes")
    ordered = ["\t".join(line.split("\t")[place] for place in order) for line in lines]
    for split in ("train", "test"):
        write(tmp_path / f"msr_paraphrase_{split}.txt", *ordered, encoding="utf-8-sig", ending="\r\n")
    [task], _ = read_tasks(tmp_path, ["MRPC"])
    assert task.pairs
    assert task.train.texts == ('"He said', "No")
    assert task.train.second == ('He did "say"', "Yes")
    assert task.train.labels.tolist() == [1, 0]
    assert len(task.sentences) == 8


def test_read_rte_by_the_names_of_its_columns(tmp_path: Path) -> None:
    lines = ("label\tsentence2\tindex\tsentence1", 'entailment\tB\t0\t"A\x85a', "not_entailment\tD\t1\tC")
    write(tmp_path / "glue" / "RTE" / "dev.tsv", *lines, ending="\r\n")
    write(tmp_path / "dev.tsv", "another\ttask")
    [task], _ = read_tasks(tmp_path, ["RTE"])
    assert task.pairs
    assert task.train.texts == ('"A\x85a', "C")
    assert task.train.second == ("B", "D")
    assert task.train.labels.tolist() == [1, 0]


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    odd = "a\x85b\u2028c\x0bd\x1ce\rf"
    assert lines_of(write(tmp_path / "utf8", odd, "g")) == [odd, "g"]
    assert lines_of(write(tmp_path / "latin1", "a\x85b", "é", encoding="latin-1", ending="\r\n")) == ["a\x85b", "é"]
    (tmp_path / "unended").write_bytes(b"a\n\nb")
    assert lines_of(tmp_path / "unended") == ["a", "", "b"]
    (tmp_path / "empty").write_bytes(b"")
    assert lines_of(tmp_path / "empty") == []


def test_absent_tasks_name_their_missing_files(tmp_path: Path) -> None:
    write(tmp_path / "rt-polarity.pos", "one class only")
    write(tmp_path / "TREC_10.label", "DESC:def What is it ?")
    write(tmp_path / "SST" / "binary" / "sentiment-dev", "not this\t1")
    found, absent = read_tasks(tmp_path, ["MR", "TREC", "SST5"])
    assert found == []
    assert absent == {
        "MR": ("rt-polarity.neg",),
        "TREC": ("TREC.train or train_5500.label",),
        "SST5": tuple(f"stsa.fine.{s} or fine/sentiment-{s}" for s in ("train", "dev", "test")),
    }


@pytest.mark.parametrize(
    ("name", "bad", "lines", "number"),
    [
        ("TREC", "TREC.test", ["DESC:def What ?", "WHAT:def What ?"], 2),
        ("TREC", "TREC.train", ["DESC:def What ?", "", "DESC:def Who ?"], 2),
        ("SST5", "stsa.fine.dev", ["0 fine", "5 none"], 2),
        ("SST5", "stsa.fine.dev", ["good\t1", "2 bad"], 2),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, name: Any, bad: str, lines: list[str], number: int) -> None:
    for split in ("train", "test", "dev"):
        write(tmp_path / f"TREC.{split}", "DESC:def What ?")
        write(tmp_path / f"stsa.fine.{split}", "0 bad")
    write(tmp_path / bad, *lines)
    with pytest.raises(DataError, match=f"{bad}: line {number}") as caught:
        read_tasks(tmp_path, [name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["1\t7\t8\tA\tB"], "'1', '7', '8', 'A', 'B'"),
        ([f"{PARAPHRASE_HEADER}\tQuality", "1\t7\t8\tA\tB\t0"], "'Quality'"),
        ([PARAPHRASE_HEADER, "1\t7\t8\tA\tB", "1\t7\t8\tA"], "line 3"),
        ([PARAPHRASE_HEADER, "1\t7\t8\tA\tB\tC"], "line 2"),
        ([PARAPHRASE_HEADER, "\u0661\t7\t8\tA\tB"], "line 2"),
        ([PARAPHRASE_HEADER], "msr"),
        (["sentence\tlabel"], "'sentence', 'label'"),
        ([RTE_HEADER, "0\tA\tB\t1"], "line 2"),
        ([RTE_HEADER], "RTE"),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, lines: list[str], named: str) -> None:
    name: TaskName = "RTE" if "label" in lines[0] else "MRPC"
    write(tmp_path / "msr_paraphrase_train.txt", PARAPHRASE_HEADER, "1\t7\t8\tA\tB")
    file = write(tmp_path / ("RTE/dev.tsv" if name == "RTE" else "msr_paraphrase_test.txt"), *lines)
    with pytest.raises(WhitenError, match=named) as caught:
        read_tasks(tmp_path, [name])
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("name", "file"), [("MR", "rt-polarity.neg"), ("TREC", "TREC.train")])
def test_empty_files_are_refused(tmp_path: Path, name: TaskName, file: str) -> None:
    write(tmp_path / "rt-polarity.pos", "good")
    write(tmp_path / "TREC.test", "DESC:def What ?")
    write(tmp_path / file)
    with pytest.raises(DataError, match=file):
        read_tasks(tmp_path, [name])


def test_the_public_files_have_the_published_sizes(public_data: Path) -> None:
    found, _ = read_tasks(public_data, get_args(TaskName))
    sizes = {
        task.name: tuple(len(split.labels) if split else 0 for split in (task.train, task.dev, task.test))
        for task in found
    }
    published = {
        "MR": (10662, 0, 0),
        "SUBJ": (10000, 0, 0),
        "MPQA": (10606, 0, 0),
        "TREC": (5452, 0, 500),
        "SST5": (8544, 1101, 2210),
        "MRPC": (4076, 0, 1725),
        "RTE": (277, 0, 0),
    }
    assert {name: size for name, size in sizes.items() if name in published} == published
