"""Test how C is chosen for SST-5, and `whiten eval classification`."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from support.cli import ok, refused
from support.corpus import sentences
from whiten_evaluation.classification import ClassificationTask, Split, classify
from whiten_evaluation.commands.eval import ALL_TASKS
from whiten_evaluation.embedding import TextVectors

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, which is faster for thousands of small products."""
    with threadpool_limits(1):
        yield


class Made:
    """Makes random samples of overlapping classes, with texts of 1 to 5 words."""

    def __init__(self, width: int, classes: int, spread: float = 1.0) -> None:
        self.random = np.random.default_rng(0)
        self.centres, self.spread = self.random.normal(size=(classes, width)), spread
        self.stacked: dict[str, np.ndarray] = {}

    def split(self, count: int) -> Split:
        labels = np.arange(count) % len(self.centres)
        noise = self.random.normal(size=(len(labels), self.centres.shape[1]))
        counts = self.random.integers(0, 5, len(labels))
        names = [f"{len(self.stacked) + n}" + " word" * count for n, count in enumerate(counts)]
        self.stacked |= dict(zip(names, (self.centres[labels] + 2 * noise) * self.spread, strict=True))
        return Split(tuple(names), (), labels.astype(np.int64))

    @property
    def vectors(self) -> TextVectors:
        rows = {text: row for row, text in enumerate(self.stacked)}
        return TextVectors(rows, np.array(list(self.stacked.values()), np.float32))


def regression(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, tol=1e-7, max_iter=10000)


def test_sst5_chooses_c_by_the_dev_split() -> None:
    made = Made(6, 5, 0.5)
    task = ClassificationTask("SST5", made.split(100), made.split(80), made.split(60), classes=tuple("01234"))
    assert task.dev is not None
    assert task.test is not None
    models = [
        regression(2.0**power).fit(made.vectors.of(task.train.texts), task.train.labels) for power in range(-2, 4)
    ]
    scores = [model.score(made.vectors.of(task.dev.texts), task.dev.labels) for model in models]
    model = models[int(np.argmax(scores))]
    found = classify(task, made.vectors)
    assert found.strengths == (model.C,)
    assert found.accuracy == pytest.approx(100 * model.score(made.vectors.of(task.test.texts), task.test.labels))


run = partial(ok, "eval", "classification")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write small files of all eight tasks."""
    folder = tmp_path_factory.mktemp("data")
    texts = [text.replace("\t", " ") for text in sentences(60)]
    names = ("rt-polarity.pos", "custrev.pos", "subj.objective", "mpqa.pos")
    others = ("rt-polarity.neg", "custrev.neg", "subj.subjective", "mpqa.neg")
    contents = {
        **dict.fromkeys(names, texts[:30]),
        **dict.fromkeys(others, texts[30:]),
        **{
            f"stsa.fine.{split}": [f"{n % 5} {text}" for n, text in enumerate(texts)]
            for split in ("train", "dev", "test")
        },
    }
    for split in ("train", "test"):
        kinds = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
        contents[f"TREC.{split}"] = [f"{kinds[n % 6]}:x {text}" for n, text in enumerate(texts)]
        pairs = [f"{n % 2}\t1\t2\t{text}\t{texts[-n]}" for n, text in enumerate(texts)]
        contents[f"msr_paraphrase_{split}.txt"] = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *pairs]
    entailed = [f"{n}\t{text}\t{texts[-n]}\t{'not_' * (n % 3 == 0)}entailment" for n, text in enumerate(texts)]
    contents["RTE/dev.tsv"] = ["index\tsentence1\tsentence2\tlabel", *entailed]
    (folder / "RTE").mkdir()
    for name, lines in contents.items():
        (folder / name).write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def test_command_scores_all_tasks(tiny_bundle: Path, data: Path) -> None:
    result = run(tiny_bundle, "--data", data, "--json")
    document = json.loads(result.stdout)
    assert (document["absent"], document["warnings"]) == ({}, [])
    [bundle] = document["bundles"]
    assert [task["task"] for task in bundle["tasks"]] == list(ALL_TASKS)
    assert [task["n"] for task in bundle["tasks"]] == [60] * 8
    assert [len(task["strengths"]) for task in bundle["tasks"]] == [10] * 4 + [1] * 3 + [0]
    *seven, rte = bundle["tasks"]
    assert bundle["average"] == pytest.approx(np.mean([task["accuracy"] for task in seven]))
    assert (round(rte["majority"], 2), {task["entailed"] for task in seven}) == (66.67, {None})


def test_command_warns_of_absent_tasks(tiny_bundle: Path, data: Path, tmp_path: Path) -> None:
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "rt-polarity.pos"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    result = run(tiny_bundle, "--data", tmp_path, "--tasks", "mrpc,MR")
    assert "rt-polarity.neg" in result.stderr
    _, row = (re.split(r"  +", line) for line in result.stdout.splitlines())
    assert (row[1], row[-2:]) == ("MRPC", ["-", "-"])
    document = json.loads(run(tiny_bundle, "--data", tmp_path, "--tasks", "MRPC,MR", "--json").stdout)
    assert document["absent"] == {"MR": ["rt-polarity.neg"]}
    assert document["bundles"][0]["average"] is None


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--tasks", "MR,STSB"], 2, "'STSB'"),
        (["--tasks", "CR"], 2, "custrev.pos"),
        (["--tasks", "RTE"], 2, "RTE/dev.tsv"),
        (["--tasks", "MPQA"], 1, "2 samples"),
    ],
)
def test_errors_are_one_line(tiny_bundle: Path, tmp_path: Path, options: list[str], code: int, named: str) -> None:
    for name, count in (("rt-polarity.pos", 12), ("rt-polarity.neg", 12), ("mpqa.pos", 12), ("mpqa.neg", 2)):
        texts = [f"{name} {n}" for n in range(count)]
        (tmp_path / name).write_text("\n".join(texts) + "\n", "utf-8")
    assert named in refused("eval", "classification", tiny_bundle, "--data", tmp_path, *options, code=code)
