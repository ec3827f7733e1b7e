"""Search and its measures, compared with sentence-transformers' evaluator, with loops, and on a real checkpoint."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli import invoke, ok
from support.corpus import sentences
from whiten import Coder, Encoder
from whiten_evaluation.embedding import Storage, storages
from whiten_evaluation.retrieval import MEASURES, TOP, Row, measured, nearest, score_rows, search
from whiten_runtime.commands.console import whiten
from whiten_runtime.errors import BundleError
from whiten_runtime.files.judged import Collection
from whiten_runtime.inference.vectors import Nearest
from whiten_whitening.measures import Judged

WHOLE = [Storage("float32", lambda width: 4 * width)]


def made(documents: int, queries: int, grades: int = 1, seed: int = 0) -> tuple[Collection, np.ndarray, np.ndarray]:
    """Return a collection, the vectors of its queries, and those of its documents in the order of their ids."""
    random = np.random.default_rng(seed)
    names = [f"d{number:04}" for number in range(documents)]
    asked = {f"q{number}": f"query {number}" for number in range(queries)}
    relevant = {
        query: {
            names[row]: int(random.integers(1, grades + 1))
            for row in random.choice(documents, random.integers(1, 6), replace=False)
        }
        for query in asked
    }
    rows, wanted = random.normal(size=(documents, 8)), random.normal(size=(queries, 8))
    for index, own in enumerate(relevant.values()):
        wanted[index] += sum(2 * rows[int(name[1:])] for name in own)
    texts = dict(zip(names, sentences(documents), strict=True))
    return Collection("made", texts, asked, relevant, 0), wanted.astype(np.float32), rows.astype(np.float32)


def test_measures_are_those_of_sentence_transformers() -> None:
    pytest.importorskip("pytrec_eval")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    collection, queries, rows = made(300, 40)
    names = collection.ids
    found = nearest(queries, [rows], WHOLE)[0]
    cosines = (queries @ rows.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
    assert (found.rows == np.argsort(-cosines, axis=1)[:, : TOP + 1]).all()
    evaluator = InformationRetrievalEvaluator(
        dict(collection.queries),
        dict(collection.documents),
        {query: set(own) for query, own in collection.relevant.items()},
        mrr_at_k=[10],
        ndcg_at_k=[10],
        precision_recall_at_k=[10, 100],
        map_at_k=[100],
    )
    hits = [
        [{"corpus_id": names[row], "score": float(score)} for row, score in zip(own, scores, strict=True)]
        for own, scores in zip(found.rows[:, :TOP], found.cosines[:, :TOP], strict=True)
    ]
    theirs = evaluator.compute_metrics(hits)
    wanted = {
        "nDCG@10": theirs["ndcg@k"][10],
        "MRR@10": theirs["mrr@k"][10],
        "R@10": theirs["recall@k"][10],
        "R@100": theirs["recall@k"][100],
        "MAP@100": theirs["map@k"][100],
    }
    ours = measured(collection, found)
    assert 20 < ours["nDCG@10"].mean() < 95
    assert {measure: ours[measure].mean() for measure in MEASURES} == pytest.approx(
        {measure: 100 * value for measure, value in wanted.items()}, abs=1e-9
    )


def test_a_grade_is_its_gain() -> None:
    pytest.importorskip("pytrec_eval")
    collection, queries, rows = made(120, 25, grades=3)
    names = collection.ids
    found = nearest(queries, [rows], WHOLE)[0]
    ours = measured(collection, found)["nDCG@10"]
    discounts = 1 / np.log2(np.arange(2, 12))
    for place, (query, own) in enumerate(collection.relevant.items()):
        gains = [own.get(names[row], 0) for row in found.rows[place][:10]]
        best = sorted(own.values(), reverse=True)[:10]
        ideal = np.dot(best, discounts[: len(best)])
        assert ours[place] == pytest.approx(100 * np.dot(gains, discounts) / ideal), query


def test_a_document_that_is_the_query_itself_is_left_out_as_by_beir() -> None:
    """Eight texts, four of them queries under their own ids, as in ArguAna: each finds itself first."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    ids = [f"d{number}" for number in range(8)]
    texts = {key: f"text {key}" for key in ids}
    relevant = {f"d{number}": {f"d{number + 4}": 1} for number in range(4)}
    collection = Collection("made", texts, {key: texts[key] for key in relevant}, relevant, 0)
    rows = np.eye(4, 5, dtype=np.float32)
    documents = np.concatenate([rows, rows + np.float32(0.2) * np.eye(1, 5, 4, dtype=np.float32)])
    found = nearest(rows, [documents], WHOLE)[0]
    assert [own[:2] for own in found.rows.tolist()] == [[number, number + 4] for number in range(4)]
    run = {
        query: {ids[row]: -float(place) for place, row in enumerate(own)}
        for query, own in zip(relevant, found.rows, strict=True)
    }
    without = {query: {key: value for key, value in own.items() if key != query} for query, own in run.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10", "map_cut.100", "recip_rank"})
    kept, wanted = (list(evaluator.evaluate(runs).values()) for runs in (run, without))
    ours = measured(collection, found)
    assert [round(100 * own["ndcg_cut_10"], 1) for own in kept] == [63.1] * 4
    assert [100 * own["ndcg_cut_10"] for own in wanted] == [100] * 4
    assert ours["nDCG@10"] == pytest.approx([100] * 4)
    assert ours["MAP@100"] == pytest.approx([100 * own["map_cut_100"] for own in wanted])
    assert ours["MRR@10"] == pytest.approx([100 * own["recip_rank"] for own in wanted])


def test_a_document_that_only_has_the_number_of_a_query_stays() -> None:
    pytest.importorskip("pytrec_eval")
    documents = {"1": "Flow past a wing", "2": "Heat in a plate"}
    collection = Collection("made", documents, {"1": "wings in flow"}, {"1": {"1": 1}}, 0)
    assert collection.own_rows == (None,)
    found = nearest(np.float32([[1, 0]]), [np.eye(2, dtype=np.float32)], WHOLE)[0]
    assert measured(collection, found)["nDCG@10"] == 100


def test_a_relevant_document_that_is_not_there_lowers_the_scores() -> None:
    """BEIR's own evaluation gives pytrec_eval such judgements as they are."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    relevant = {"q1": {"d1": 1, "gone": 2}, "q2": {"lost": 1}}
    collection = Collection("made", {"d1": "a", "d2": "b"}, {"q1": "x", "q2": "y"}, relevant, 0)
    found = nearest(np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float32)], WHOLE)[0]
    run = {"q1": {"d1": 2.0, "d2": 1.0}, "q2": {"d2": 2.0, "d1": 1.0}}
    wanted = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10", "recall.10", "map_cut.100"}).evaluate(run)
    ours = measured(collection, found)
    for measure, key in (("nDCG@10", "ndcg_cut_10"), ("R@10", "recall_10"), ("MAP@100", "map_cut_100")):
        assert ours[measure] == pytest.approx([100 * wanted[query][key] for query in relevant])
    assert ours["R@10"].tolist() == [50, 0]
    judged = Judged(np.eye(2), np.eye(2), ({0: 1, -2: 2}, {-1: 1}), (None, None))
    assert 100 * judged.ndcg_at_10(judged.queries, judged.documents, True) == pytest.approx(ours["nDCG@10"])


@given(cuts=st.lists(st.integers(0, 60), max_size=4), cosine=st.booleans())
def test_blocks_change_nothing_and_equals_are_in_the_order_of_ids(cuts: list[int], cosine: bool) -> None:
    random = np.random.default_rng(1)
    rows = random.choice(np.float32([-1, 1]), (60, 4))  # of norm 2: many cosines are equal, to the last bit
    queries = random.choice(np.float32([-1, 1]), (7, 4))
    blocks = np.split(rows, sorted(cuts))
    found = nearest(queries, blocks, WHOLE, cosine)[0]
    whole = Nearest.empty(7).add(queries, rows, 0, TOP + 1, cosine)
    assert (found.rows == whole.rows).all()
    values = whole.cosines
    for own, scores in zip(found.rows, values, strict=True):
        keys = [(-float(score), int(row)) for row, score in zip(own, scores, strict=True)]
        assert keys == sorted(keys)
    if not cosine:
        assert np.array_equal(np.sort(values, axis=1)[:, ::-1], -np.sort(-(queries @ rows.T), axis=1))


def test_intervals_are_paired() -> None:
    collection, _, _ = made(20, 50)
    random = np.random.default_rng(2)
    first = random.uniform(0, 100, 50)
    rows = [
        Row(name, "float32", 32, dict.fromkeys(MEASURES, values))
        for name, values in (("a", first), ("b", first + 1), ("c", random.permutation(first)))
    ]
    base, better, other = score_rows(collection, rows)
    assert base.difference is None
    assert better.difference is not None
    assert better.difference.certain
    assert [better.difference.low, better.difference.high] == pytest.approx([1, 1])
    assert other.difference is not None
    assert not other.difference.certain
    error = first.std() / np.sqrt(50)
    assert base.interval.high - base.interval.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_queries_and_documents_get_their_prompts(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytrec_eval")
    from whiten_evaluation import retrieval as module

    collection, queries, rows = made(30, 4)
    read = module.read_manifest
    prompts = {"query": "q: ", "document": "d: "}
    monkeypatch.setattr(module, "read_manifest", lambda path: _with(read(path), prompts=prompts))
    asked: list[tuple[int, str]] = []

    def embed(texts: Any, prompt: str, advance: Any) -> np.ndarray:
        asked.append((len(texts), prompt))
        return queries if prompt == "q: " else rows

    search("x", tiny_bundle, collection, embed, WHOLE, lambda count: None)
    assert asked == [(4, "q: "), (30, "d: ")]


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"similarity_fn_name": "euclidean", "normalize": False}, "euclidean"), ({"route": "query"}, "route query")],
)
def test_other_bundles_are_refused(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], word: str
) -> None:
    from whiten_evaluation import retrieval as module

    read = module.read_manifest
    monkeypatch.setattr(module, "read_manifest", lambda path: _with(read(path), **fields))
    with pytest.raises(BundleError, match=word):
        search("x", tiny_bundle, made(5, 1)[0], None, WHOLE, len)  # type: ignore[arg-type]


def _with(manifest: Any, **fields: Any) -> Any:
    import msgspec

    return (
        msgspec.structs.replace(manifest, **fields)
        if isinstance(manifest, msgspec.Struct)
        else replace(manifest, **fields)
    )


def test_codes_find_what_their_coder_finds(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle) as encoder:
        rows = encoder.encode(sentences(50))
    coder = Coder.of(tiny_bundle, 8)
    found = nearest(rows[:5], [rows], storages(tiny_bundle, (), (8,))[1:])[0]
    assert np.array_equal(found.rows, coder.search(rows[:5], coder.encode(rows), 50).rows)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Write collections of sentences in BEIR's layout, in which each query is one of the documents."""

    def write(*names: str) -> Path:
        for name in names:
            place = tmp_path / "data" / name
            (place / "qrels").mkdir(parents=True)
            texts = sentences(40)
            corpus = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts)]
            queries = [{"_id": f"q{n}", "text": texts[n]} for n in range(8)]
            (place / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus), "utf-8")
            (place / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries), "utf-8")
            lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(8))]
            (place / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
        return tmp_path / "data"

    return write


def test_the_command_finds_what_is_there(tiny_bundle: Path, folder: Callable[..., Path]) -> None:
    pytest.importorskip("pytrec_eval")
    data = folder("one", "two")
    result = ok("eval", "retrieval", tiny_bundle, "--data", data, "--bytes", 8, "--vector-type", "int8")
    header, *rows = (re.split(r"  +", line) for line in result.stdout.splitlines())
    assert header[:5] == ["bundle", "collection", "stored", "bytes", "nDCG@10"]
    assert [(row[1], row[2]) for row in rows] == [
        (name, way) for name in ("one", "two", "average of 2") for way in ("float32", "int8", "codes")
    ]
    assert all(float(row[4]) == 100 for row in rows if row[2] == "float32")
    assert float(rows[2][4]) > 30
    assert float(rows[2][11]) <= 0
    document = json.loads(ok("eval", "retrieval", tiny_bundle, "--data", data / "one", "--json").stdout)
    assert document["collections"][0]["scores"][0]["measures"]["nDCG@10"] == pytest.approx(100)


def test_two_collections_of_one_name_are_scored_apart(tiny_bundle: Path, folder: Callable[..., Path]) -> None:
    pytest.importorskip("pytrec_eval")
    data = folder("en/one", "fr/one")
    judgements = data / "fr" / "one" / "qrels" / "test.tsv"
    judgements.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td3\t1\nq3\td3\t1\n")  # three of eight
    document = json.loads(ok("eval", "retrieval", tiny_bundle, "--data", data, "--json").stdout)
    assert [(own["name"], own["queries"]) for own in document["collections"]] == [("en/one", 8), ("fr/one", 3)]
    assert [[score["difference"] for score in own["scores"]] for own in document["collections"]] == [[None], [None]]
    means = [own["scores"][0]["measures"]["nDCG@10"] for own in document["collections"]]
    assert means[0] == pytest.approx(100)
    assert means[1] < 99
    rows = [re.split(r"  +", line) for line in ok("eval", "retrieval", tiny_bundle, "--data", data).stdout.splitlines()]
    assert [row[1] for row in rows[1:]] == ["en/one", "fr/one", "average of 2"]


@pytest.mark.parametrize("other", ["d0\0b", "\ud800", "d0 ", "0", "unknown 0"])
def test_measures_do_not_depend_on_what_ids_are(other: str) -> None:
    pytest.importorskip("pytrec_eval")
    documents = {"d0": "one", other: "two", "d2": "three"}
    collection = Collection("ids", documents, {"q\0": "a", "q\0b": "b"}, {"q\0": {"d0": 1}, "q\0b": {other: 1}}, 0)
    order = np.array([[collection.ids.index(name) for name in names] for names in (["d0", other], [other, "d2"])])
    ranking = Nearest(order, np.array([[1.0, 0.5]] * 2, np.float32))
    assert {name: own.tolist() for name, own in measured(collection, ranking).items()} == {
        name: [100.0, 100.0] for name in MEASURES
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "{data}", "--split", "dev"], "are: test"),
        (["--data", "{data}/one/qrels"], "has no corpus.jsonl, but test.tsv; wanted BEIR's layout"),
        (["--data", "{data}/none"], "cannot be read"),
        (["--data", "{data}", "--bytes", "800"], "bytes is 800"),
    ],
)
def test_the_command_refuses(tiny_bundle: Path, folder: Callable[..., Path], options: list[str], words: str) -> None:
    pytest.importorskip("pytrec_eval")
    data = str(folder("one"))
    result = invoke(whiten, "eval", "retrieval", tiny_bundle, *(option.format(data=data) for option in options))
    assert result.exit_code in (1, 2)
    assert words in result.stderr.splitlines()[-1]
    assert result.stdout == ""


@pytest.mark.slow
def test_a_real_checkpoint_finds_what_others_found(public_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytrec_eval")
    data = public_data / "retrieval" / "cranfield"
    ok("export", "minilm", "--out", tmp_path / "minilm")
    result = ok("eval", "retrieval", tmp_path / "minilm", "--data", data, "--json")
    (score,) = json.loads(result.stdout)["collections"][0]["scores"]
    assert score["measures"]["nDCG@10"] == pytest.approx(50.90, abs=0.02)
    assert score["measures"]["R@100"] == pytest.approx(79.1, abs=0.1)
