"""Guarantees of measures: the scores of `whiten eval` are those of others' programs, and figures are those of tables.

That the figures of `tests/docs/figures.tsv` are the cells that are named there, also where they are combined, is tested
in tests/docs/test_figures.py. Here it is tested that no figure beside a link to a table is missing in that table.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from threadpoolctl import threadpool_limits

from support.cli import ok
from support.corpus import sentences
from whiten import Encoder

pytrec_eval = pytest.importorskip("pytrec_eval")

ROOT = Path(__file__).parents[2]
TEXTS = sentences(40)


def document(*arguments: object) -> Any:
    return json.loads(ok("eval", *arguments, "--json").stdout)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    unit = [rows.astype(float) / np.linalg.norm(rows.astype(float), axis=1, keepdims=True) for rows in (first, second)]
    found: np.ndarray = unit[0] @ unit[1].T
    return found


# Spearman's correlation, by scipy.

SUBSETS = ("FNWN", "headlines", "OnWN")
"""The sub-datasets of STS13."""

pairs = st.lists(
    st.tuples(st.permutations(range(12)).map(lambda order: tuple(sorted(order[:2]))), st.integers(0, 10)),
    min_size=3,
    max_size=25,
)
"""Places of the texts of pairs, and twice their scores: both have ties."""


@settings(max_examples=4)
@given(st.tuples(pairs, pairs, pairs))
def test_m1_spearman(
    tiny: Encoder,
    tiny_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: Sequence[list[tuple[tuple[int, int], int]]],
) -> None:
    assume(all(len({score for _, score in rows}) > 1 and len({pair for pair, _ in rows}) > 1 for rows in drawn))
    folder = tmp_path_factory.mktemp("sts") / "STS13-en-test"
    folder.mkdir()
    similar, scores = cosines(*2 * (tiny.encode(TEXTS[:12]),)), []
    for name, rows in zip(SUBSETS, drawn, strict=True):
        texts = "".join(f"{TEXTS[first]}\t{TEXTS[second]}\n" for (first, second), _ in rows)
        (folder / f"STS.input.{name}.txt").write_text(texts, "utf-8")
        (folder / f"STS.gs.{name}.txt").write_text("".join(f"{score / 2}\n" for _, score in rows), "utf-8")
        scores.append(([similar[pair] for pair, _ in rows], [score for _, score in rows]))
    (task,) = document("sts", tiny_bundle, "--data", folder, "--tasks", "STS13")["bundles"][0]["tasks"]
    wanted = [100 * spearmanr(*own).statistic for own in scores]
    assert [subset["spearman"] for subset in task["subsets"]] == pytest.approx(wanted, abs=1e-6)
    assert task["mean"] == pytest.approx(np.mean(wanted), abs=1e-6)
    assert task["wmean"] == pytest.approx(np.average(wanted, weights=[len(own[0]) for own in scores]), abs=1e-6)
    together = spearmanr(*(np.concatenate([own[side] for own in scores]) for side in (0, 1))).statistic
    assert task["all"] == pytest.approx(100 * together, abs=1e-6)


# nDCG, MRR, recall and MAP, by pytrec_eval.

MEASURES = {
    "nDCG@10": "ndcg_cut_10",
    "MRR@10": "recip_rank",
    "R@10": "recall_10",
    "R@100": "recall_100",
    "MAP@100": "map_cut_100",
}


def measures(grades: dict[str, dict[str, int]], ranked: dict[str, list[str]]) -> dict[str, float]:
    """Return the means of measures of rankings, times 100."""
    asked = {"ndcg_cut.10", "recip_rank", "recall.10,100", "map_cut.100"}
    runs = {query: {key: float(-place) for place, key in enumerate(own[:100])} for query, own in ranked.items()}
    scored = pytrec_eval.RelevanceEvaluator(grades, asked).evaluate(runs).values()
    found = {name: [own[key] for own in scored] for name, key in MEASURES.items()}
    found["MRR@10"] = [value if value >= 0.1 else 0.0 for value in found["MRR@10"]]
    return {name: 100 * float(np.mean(values)) for name, values in found.items()}


grades_of_query = st.dictionaries(st.integers(0, 139), st.integers(0, 3), min_size=1, max_size=9)
judgements = st.lists(grades_of_query.filter(lambda own: any(own.values())), min_size=1, max_size=5)
"""Grades of documents for each query."""


@settings(max_examples=4)
@given(st.lists(st.integers(0, 29), min_size=1, max_size=140), judgements)
@example([0] * 130, [{3: 2, 129: 1, 139: 3}, {0: 0, 20: 1}])
def test_m1_search(
    tiny: Encoder,
    tiny_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    places: list[int],
    judged: list[dict[int, int]],
) -> None:
    """Documents of equal texts are equally near: any order of these is right. Some judged ones are not there."""
    assume(any(grade and number < len(places) for own in judged for number, grade in own.items()))
    folder = tmp_path_factory.mktemp("search") / "made"
    (folder / "qrels").mkdir(parents=True)
    documents = {f"d{number:03}": TEXTS[place] for number, place in enumerate(places)}
    queries = {f"q{number}": TEXTS[30 + number] for number in range(len(judged))}
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": key, "title": "", "text": text}) + "\n" for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    grades = {f"q{number}": {f"d{key:03}": grade for key, grade in own.items()} for number, own in enumerate(judged)}
    table = ["query-id\tcorpus-id\tscore\n"]
    table += [f"{query}\t{key}\t{grade}\n" for query, own in grades.items() for key, grade in own.items()]
    (folder / "qrels" / "test.tsv").write_text("".join(table), "utf-8")
    (score,) = document("retrieval", tiny_bundle, "--data", folder)["collections"][0]["scores"]
    near = dict(
        zip(queries, cosines(tiny.encode(list(queries.values())), tiny.encode(TEXTS[:30])).round(6), strict=True)
    )
    place_of = dict(zip(documents, places, strict=True))
    bounds = []
    for sign in (1, -1):  # of equally near documents, those with the lowest grades come first, or last
        ranked = {
            query: sorted(
                documents, key=lambda key, query=query: (-near[query][place_of[key]], sign * grades[query].get(key, 0))
            )
            for query in queries
        }
        bounds.append(measures(grades, ranked))
    for name in MEASURES:
        assert bounds[0][name] - 1e-6 <= score["measures"][name] <= bounds[1][name] + 1e-6, name


# Accuracy, by scikit-learn.

labelled = st.lists(
    st.tuples(st.integers(0, 39), st.integers(0, 39), st.sampled_from(["entailment", "not_entailment"])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=4)
@given(labelled)
def test_m1_accuracy_of_entailment(
    tiny: Encoder, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("rte") / "RTE"
    folder.mkdir()
    similar = cosines(*2 * (tiny.encode(TEXTS),))
    assume(all(abs(similar[first, second] - 0.5) > 1e-4 for first, second, _ in drawn))
    rows = [f"{TEXTS[first]}\t{TEXTS[second]}\t{label}\n" for first, second, label in drawn]
    (folder / "dev.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(rows), "utf-8")
    (score,) = document("classification", tiny_bundle, "--data", folder, "--tasks", "RTE")["bundles"][0]["tasks"]
    truth = [label == "entailment" for _, _, label in drawn]
    decided = [similar[first, second] > 0.5 for first, second, _ in drawn]
    assert score["accuracy"] == pytest.approx(100 * accuracy_score(truth, decided))
    assert score["majority"] == pytest.approx(100 * max(np.mean(truth), 1 - np.mean(truth)))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, which is faster for thousands of small products."""
    with threadpool_limits(1):
        yield


FOLDS = StratifiedKFold(10, shuffle=True, random_state=1111)


def search_of(powers: range) -> GridSearchCV:
    """Return a logistic regression whose strength is chosen on folds, as SentEval does."""
    model = LogisticRegression(tol=1e-7, max_iter=100_000)
    return GridSearchCV(model, {"C": [2.0**power for power in powers]}, scoring="accuracy", cv=FOLDS)


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return samples in SentEval's order, which decides which fold each is in."""
    return sorted(rows, key=lambda row: (*(len(text.split()) for text in row[:-1]), row[-1]))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", [0, 1])
def test_m1_accuracy_on_folds(tiny: Encoder, tiny_bundle: Path, tmp_path: Path, seed: int) -> None:
    texts = np.random.default_rng(seed).permutation(sentences(60)).tolist()
    half = [(text, int("the" in text.lower().split())) for text in texts]
    for label, name in ((1, "pos"), (0, "neg")):
        own = "".join(f"{text}\n" for text, other in half if other == label)
        (tmp_path / f"rt-polarity.{name}").write_text(own, "utf-8")
    (score,) = document("classification", tiny_bundle, "--data", tmp_path, "--tasks", "MR")["bundles"][0]["tasks"]
    rows = in_order([row for label in (1, 0) for row in half if row[1] == label])
    x, y = tiny.encode([text for text, _ in rows]).astype(float), np.array([label for _, label in rows])
    wanted = 100 * cross_val_score(search_of(range(-2, 4)), x, y, cv=FOLDS, scoring="accuracy")
    assert score["folds"] == pytest.approx(wanted.tolist())
    assert score["accuracy"] == pytest.approx(wanted.mean())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_m1_accuracy_of_paraphrases(tiny: Encoder, tiny_bundle: Path, tmp_path: Path) -> None:
    random, splits = np.random.default_rng(3), []
    for name in ("train", "test"):
        drawn = random.integers(40, size=(80, 2))
        rows = [(TEXTS[first], TEXTS[second], int(random.integers(2))) for first, second in drawn]
        rows += [(TEXTS[place], TEXTS[place], 1) for place in range(20)]
        lines = [f"{label}\t1\t2\t{first}\t{second}\n" for first, second, label in rows]
        content = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(lines)
        (tmp_path / f"msr_paraphrase_{name}.txt").write_text(content, "utf-8")
        rows = in_order(rows)
        first, second = (tiny.encode([row[side] for row in rows]).astype(float) for side in (0, 1))
        splits.append((np.hstack([abs(first - second), first * second]), [row[2] for row in rows]))
    (score,) = document("classification", tiny_bundle, "--data", tmp_path, "--tasks", "MRPC")["bundles"][0]["tasks"]
    model = search_of(range(-1, 6)).fit(*splits[0])
    predicted = model.predict(splits[1][0])
    assert score["strengths"] == [model.best_params_["C"]]
    assert score["accuracy"] == pytest.approx(100 * accuracy_score(splits[1][1], predicted))
    assert score["f1"] == pytest.approx(100 * f1_score(splits[1][1], predicted))


# M2: a figure on a page is a cell of a table that a command of this version made.

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+\.md)[^)]*\)")
FIGURE = re.compile(r"(?<![\w.,/-])(?:\d+(?:,\d{3})*\.\d+|\.\d+|\d+(?:,\d{3})+)(?![\d.]*\w)")
"""A number that was measured: it has a fraction, or a comma before thousands."""


def tables_of(page: Path, text: str) -> list[Path]:
    linked = [(page.parent / place).resolve() for place in LINK.findall(text)]
    return [path for path in linked if ROOT / "benchmarks" in path.parents]


def cited(page: Path) -> list[tuple[str, list[Path]]]:
    """Return the sentences and rows of a page that have a link to a table, with these tables."""
    parts = re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])|\n(?=[|-])|\n\s*\n", page.read_text("utf-8"))
    return [(part, found) for part in parts if (found := tables_of(page, part))]


def value(figure: str) -> float:
    return float(figure.replace(",", ""))


def listed(page: Path) -> set[str]:
    """Return the figures of a page that tests/docs/test_figures.py compares with cells."""
    with (ROOT / "tests" / "docs" / "figures.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        name = page.relative_to(ROOT).as_posix()
        return {figure for row in rows if row["page"] == name for figure in re.findall(r"\{([^}]*)\}", row["words"])}


def numbers_in(tables: list[Path]) -> list[float]:
    return [value(found) for path in tables for found in re.findall(r"\d[\d,]*\.?\d*|\.\d+", path.read_text("utf-8"))]


def absent_figures(page: Path) -> list[str]:
    """Return the figures of a page that no table has which their sentence names, whatever the unit: GB, MB; s, ms."""
    absent = []
    for part, tables in cited(page):
        cells = numbers_in(tables)
        for figure in FIGURE.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", part)):
            unit = 0.501 * 10.0 ** -len(figure.partition(".")[2])
            near = any(abs(cell * scale - value(figure)) <= unit for cell in cells for scale in (1, 1000, 0.001))
            if not near and figure not in listed(page):
                absent.append(figure)
    return absent


CITING = [page for page in PAGES if cited(page)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", CITING, ids=name_of)
def test_m2_a_figure_is_in_the_table_beside_it(page: Path) -> None:
    assert absent_figures(page) == []


TABLES = sorted({path for page in CITING for _, tables in cited(page) for path in tables if path.name == "table.md"})


@pytest.mark.parametrize("table", TABLES, ids=name_of)
def test_m2_a_table_can_be_made_again(table: Path) -> None:
    programs = re.findall(r"python -m ([\w.]+)", table.read_text("utf-8"))
    places = [ROOT.joinpath(*program.split(".")) for program in programs]
    assert all((place / "__main__.py").exists() or place.with_suffix(".py").exists() for place in places), programs
