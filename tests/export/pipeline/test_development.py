"""Choose the whitening of an export or a refit by searching collections."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import ok, refused
from support.corpus import sentences
from whiten import Encoder
from whiten_runtime.bundle.manifest import Manifest

DOCUMENTS, QUERIES = 120, 30


def write_collection(folder: Path, split: str = "dev") -> Path:
    """Write documents, and queries of half of a document's words."""
    (folder / "qrels").mkdir(parents=True)
    texts = sentences(DOCUMENTS)
    corpus = [{"_id": f"d{n:03}", "title": "", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(texts[n].split()[::2])} for n in range(QUERIES)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus), "utf-8")
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries), "utf-8")
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n:03}\t1" for n in range(QUERIES))]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_collection(tmp_path / "data" / "one")
    write_collection(tmp_path / "data" / "two", "test")
    return tmp_path / "data"


def chosen(manifest: Manifest) -> Any:
    choice = manifest.choice
    assert choice is not None
    best = max(candidate.ndcg_at_10 for candidate in choice.candidates)
    if "simplest" not in choice.why:
        return choice, next(candidate for candidate in choice.candidates if candidate.ndcg_at_10 == best)
    value = float(choice.why.partition("nDCG@10 ")[2].split(" ")[0])
    return choice, next(one for one in choice.candidates if round(100 * one.ndcg_at_10, 2) == value)


@pytest.mark.slow
def test_export_and_refit_choose_as_the_evaluation_scores(
    checkpoint: Callable[[str], Path], corpus_file: Path, data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pytrec_eval")
    corpus = ("--corpus", corpus_file)
    with (data / "one/qrels/dev.tsv").open("a") as stream:
        stream.write("q0\tgone\t1\nq99\td001\t1\n")
    ok("export", checkpoint("bert"), *corpus, "--dev", data, "--out", tmp_path / "b")
    ok("refit", tmp_path / "b", *corpus, "--dev", data / "one", "--out", tmp_path / "c")
    ok("fit", tmp_path / "b", *corpus, "--out", tmp_path / "mine.stats")
    ok("refit", tmp_path / "b", "--stats", tmp_path / "mine.stats", "--dev", data / "one", "--out", tmp_path / "d")
    for name, collections in (("b", ("one", "two")), ("c", ("one",)), ("d", ("one",))):
        with Encoder(tmp_path / name) as encoder:
            choice, best = chosen(encoder.manifest)
            assert encoder.dimension == best.dimension
        assert [(one.name, one.sentences) for one in choice.collections] == [(one, 30) for one in collections]
        assert choice.pairs is None
        split = "test" if name == "b" else "dev"
        if name == "b":
            shutil.copy(data / "one/qrels/dev.tsv", data / "one/qrels/test.tsv")
        else:
            (data / "one/qrels/test.tsv").unlink(missing_ok=True)
        folder = data if name == "b" else data / "one"
        scores = ok("eval", "retrieval", tmp_path / name, "--data", folder, "--split", split, "--json")
        measured = [one["scores"][0]["measures"]["nDCG@10"] for one in json.loads(scores.stdout)["collections"]]
        assert np.mean(measured) == pytest.approx(100 * best.ndcg_at_10, abs=0.5)


def test_pairs_in_a_folder_decide_where_nothing_is_searched(
    make: Callable[..., Path], corpus_file: Path, dev_file: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    shutil.copy(dev_file, folder / "pairs.jsonl")
    bundle, corpus = make(), ("--corpus", corpus_file)
    result = ok("refit", bundle, *corpus, "--dev", folder, "--out", tmp_path / "c", "--json")
    choice = json.loads(result.stdout)["manifest"]["choice"]
    assert (choice["pairs"]["sentences"], "collections" in choice) == (80, False)
    write_collection(folder / "search")
    result = ok("refit", bundle, *corpus, "--dev", folder, "--out", tmp_path / "d", "--json")
    choice = json.loads(result.stdout)["manifest"]["choice"]
    assert (choice["pairs"], choice["collections"][0]["name"]) == (None, "search")
    aligned = ok(
        "refit", bundle, *corpus, "--dev", data / "one", "--align-to", bundle, "--out", tmp_path / "e", "--json"
    )
    manifest = json.loads(aligned.stdout)["manifest"]
    assert manifest["whitening"]["alignment"]["median_cosine"] > 0


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ("empty", (), "data"),
        ("two", (), "a.csv, b.csv"),
        ("splits", (), "test, train"),
        ("grade", (), "'0.5'"),
        ("", ("--whitening", "pca"), "auto"),
    ],
)
def test_bad_data_is_refused_in_one_line(
    make: Callable[..., Path], corpus_file: Path, tmp_path: Path, change: str, options: tuple[str, ...], words: str
) -> None:
    folder = tmp_path / "data"
    if change in ("empty", "two"):
        folder.mkdir()
        for name in ("a.csv", "b.csv") if change == "two" else ():
            (folder / name).write_text("sentence1,sentence2,score\n")
    else:
        write_collection(folder, "test" if change == "splits" else "dev")
    judgements = folder / "qrels"
    if change == "splits":
        shutil.copy(judgements / "test.tsv", judgements / "train.tsv")
    elif change == "grade":
        with (judgements / "dev.tsv").open("a") as stream:
            stream.write("q1\td002\t0.5\n")
    code = 1 if change in ("query", "grade") else 2
    error = refused(
        "refit", make(), "--corpus", corpus_file, "--dev", folder, *options, "--out", tmp_path / "c", code=code
    )
    assert words in error
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("similarity", "words"), [("euclidean", "compares vectors by euclidean"), ("dot", "")])
def test_models_that_compare_by_distance_are_refused(similarity: str, words: str, tiny: Encoder, data: Path) -> None:
    import msgspec

    from whiten import UsageError
    from whiten_runtime.reporter import Reporter
    from whiten_whitening.choosing import check_searched, read_development

    development = read_development(data, Reporter())
    manifest = msgspec.structs.replace(tiny.manifest, similarity_fn_name=similarity)
    check_searched(None, manifest, False)
    check_searched(development, manifest, True)
    if words:
        with pytest.raises(UsageError, match=words):
            check_searched(development, manifest, False)
    else:
        check_searched(development, manifest, False)
    with pytest.raises(UsageError, match="route query only"):
        check_searched(development, msgspec.structs.replace(manifest, route="query"), True)
