"""Test SentEval's protocol against plain loops over scikit-learn's lbfgs, RTE by cosines, and the command."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from threadpoolctl import threadpool_limits

from support.cli import ok, refused
from support.corpus import sentences
from whiten_evaluation.classification import ClassificationTask, Split, classify, features
from whiten_evaluation.commands.eval import ALL_TASKS
from whiten_evaluation.embedding import TextVectors

pytestmark = pytest.mark.slow

FOLDS = StratifiedKFold(10, shuffle=True, random_state=1111)


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

    def texts(self, labels: np.ndarray) -> tuple[str, ...]:
        noise = self.random.normal(size=(len(labels), self.centres.shape[1]))
        counts = self.random.integers(0, 5, len(labels))
        names = [f"{len(self.stacked) + n}" + " word" * count for n, count in enumerate(counts)]
        self.stacked |= dict(zip(names, (self.centres[labels] + 2 * noise) * self.spread, strict=True))
        return tuple(names)

    def split(self, count: int, pairs: bool = False) -> Split:
        labels = np.arange(count) % len(self.centres)
        second = self.texts(labels) if pairs else ()
        return Split(self.texts(labels), second, labels.astype(np.int64))

    @property
    def vectors(self) -> TextVectors:
        rows = {text: row for row, text in enumerate(self.stacked)}
        return TextVectors(rows, np.array(list(self.stacked.values()), np.float32))


def best(x: np.ndarray, y: np.ndarray, powers: range) -> float:
    scores = [round(100 * np.mean(cross_val_score(regression(2.0**power), x, y, cv=FOLDS)), 2) for power in powers]
    return 2.0 ** powers[int(np.argmax(scores))]


def regression(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, tol=1e-7, max_iter=10000)


def in_order(split: Split, vectors: TextVectors) -> tuple[np.ndarray, np.ndarray]:
    """Return features and classes in SentEval's order: by the words of a text, of the second text, then by class."""
    rows = sorted(
        zip(split.texts, split.second or split.texts, split.labels.tolist(), strict=True),
        key=lambda z: (len(z[0].split()), len(z[1].split()), z[2]),
    )
    u, v = (vectors.of(row[side] for row in rows) for side in (0, 1))
    return np.c_[np.abs(u - v), u * v] if split.second else u, np.array([row[2] for row in rows])


@pytest.mark.parametrize(
    ("width", "count", "spread"),
    [(5, 150, 0.3), (30, 60, 3.0)],
    ids=["overlapping", "separable"],
)
def test_nested_folds_equal_scikit_learn(width: int, count: int, spread: float) -> None:
    made = Made(width, 2, spread)
    task = ClassificationTask("MR", made.split(count))
    x, y = in_order(task.train, made.vectors)
    accuracies, strengths = [], []
    for learn, test in FOLDS.split(x, y):
        strengths.append(best(x[learn], y[learn], range(-2, 4)))
        accuracies.append(regression(strengths[-1]).fit(x[learn], y[learn]).score(x[test], y[test]))
    found = classify(task, made.vectors)
    assert found.strengths == tuple(strengths)
    assert found.accuracy == pytest.approx(100 * np.mean(accuracies))
    assert found.folds == pytest.approx([100 * accuracy for accuracy in accuracies])
    assert found.majority == 50
    assert (found.task, found.n, found.f1) == ("MR", count, None)


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


def test_pairs_are_scored_by_accuracy_and_f1() -> None:
    made = Made(4, 2)
    train, test = made.split(120, pairs=True), made.split(70, pairs=True)
    task = ClassificationTask("MRPC", train, test, pairs=True)
    x, y = in_order(train, made.vectors)
    np.testing.assert_array_equal(features(train, made.vectors)[0], x)
    strength = best(x, y, range(-1, 6))
    tested, labels = in_order(test, made.vectors)
    predicted = regression(strength).fit(x, y).predict(tested)
    found = classify(task, made.vectors)
    assert found.strengths == (strength,)
    assert found.accuracy == pytest.approx(100 * np.mean(predicted == labels))
    assert found.f1 == pytest.approx(100 * f1_score(labels, predicted))


def test_rte_is_decided_by_cosines_above_a_half() -> None:
    angles = np.radians([0, 59, 61, 180])
    ends = np.column_stack([np.cos(angles), np.sin(angles)]) * [[1], [3], [0.5], [2]]
    vectors = TextVectors({"start": 0, "a": 1, "b": 2, "c": 3, "d": 4}, np.vstack([[7, 0], ends]).astype(np.float32))
    pairs = Split(("start",) * 4, ("a", "b", "c", "d"), np.array([1, 0, 0, 1]))
    found = classify(ClassificationTask("RTE", pairs, pairs=True), vectors)
    assert (found.n, found.accuracy, found.majority, found.entailed) == (4, 50, 50, 50)
    assert (found.f1, found.folds, found.strengths) == (None, (), ())


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
    assert result.stderr.count("MR (no rt-polarity.neg)") == 1
    header, row = (re.split(r"  +", line) for line in result.stdout.splitlines())
    assert header == ["bundle", "task", "samples", "accuracy", "F1", "majority", "lowest fold", "highest fold"]
    assert (row[1], row[-2:]) == ("MRPC", ["-", "-"])
    document = json.loads(run(tiny_bundle, "--data", tmp_path, "--tasks", "MRPC,MR", "--json").stdout)
    assert document["absent"] == {"MR": ["rt-polarity.neg"]}
    assert document["bundles"][0]["average"] is None


def test_the_table_shows_the_majority_and_the_spread_of_the_folds(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = sentences(80)
    (tmp_path / "custrev.pos").write_text("\n".join(texts[:50]) + "\n", "utf-8")
    (tmp_path / "custrev.neg").write_text("\n".join(texts[50:]) + "\n", "utf-8")
    options = (tiny_bundle, "--data", tmp_path, "--tasks", "CR")
    _, row = run(*options).stdout.splitlines()
    [task] = json.loads(run(*options, "--json").stdout)["bundles"][0]["tasks"]
    assert len(task["folds"]) == 10
    assert task["accuracy"] == pytest.approx(np.mean(task["folds"]))
    numbers = (task["accuracy"], None, 62.5, min(task["folds"]), max(task["folds"]))
    assert re.split(r"  +", row)[1:] == ["CR", "80", *("-" if x is None else f"{x:.2f}" for x in numbers)]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--tasks", "MR,STSB"], 2, "task 'STSB' is unknown; wanted some of MR,CR,SUBJ,MPQA,TREC,SST5,MRPC,RTE"),
        (["--tasks", "CR"], 2, "none of the tasks that were asked for; wanted files of CR (no custrev.pos"),
        (["--tasks", "RTE"], 2, "wanted files of RTE (no RTE/dev.tsv or rte/dev.tsv)"),
        (["--tasks", "MPQA"], 1, "MPQA: class 0 has 2 samples to learn from; wanted 12 or more"),
    ],
)
def test_errors_are_one_line(tiny_bundle: Path, tmp_path: Path, options: list[str], code: int, message: str) -> None:
    for name, count in (("rt-polarity.pos", 12), ("rt-polarity.neg", 12), ("mpqa.pos", 12), ("mpqa.neg", 2)):
        texts = [f"{name} {n}" for n in range(count)]
        (tmp_path / name).write_text("\n".join(texts) + "\n", "utf-8")
    assert message in refused("eval", "classification", tiny_bundle, "--data", tmp_path, *options, code=code)
