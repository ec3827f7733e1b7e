"""Test bundles in the real sentence-transformers, fastembed, optimum and mteb, installed in a separate environment."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

from support.cli import ok
from support.corpus import sentences
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe

pytestmark = [pytest.mark.slow, pytest.mark.clients]

CLIENTS = Path(__file__).with_name("clients.py")

TEXTS = [*sentences(60), "", "a", "long " * 400, "longer " * 3000, "Ünïcödé 日本 👩‍👧 русский", "  spaces  "]


@pytest.fixture(scope="session")
def words_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write random vectors for words of the corpus, in GloVe's format."""
    words = sorted({word for sentence in sentences(2000) for word in sentence.lower().split() if word.isalpha()})
    rows = np.random.default_rng(0).normal(size=(len(words), 12))
    path = tmp_path_factory.mktemp("words") / "glove.12d.txt"
    lines = (f"{word} {' '.join(f'{x:.5f}' for x in row)}\n" for word, row in zip(words, rows, strict=True))
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture(scope="session")
def bundles(
    minilm_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    words_file: Path,
    long_bundle: Path,
) -> list[Path]:
    """Export the real checkpoint, also normalised and truncated; byte-level BPE; word vectors; long texts."""
    folder = tmp_path_factory.mktemp("for-clients")
    corpus = (str(corpus_file),)
    recipes = {
        "normalised": Recipe("minilm", layers=(1,), max_sentences=2000, dim=128, normalize=True, max_length=64),
        # The last dimensions of a random network would be rounding, multiplied by their whitening.
        "roberta": Recipe(str(checkpoint("roberta")), corpus=corpus, dim=16),
        "words": Recipe(str(words_file), corpus=corpus),
        "sif": Recipe(str(words_file), pooling="sif", corpus=corpus),
    }
    return [
        minilm_bundle,
        long_bundle,
        *(export_bundle(recipe, folder / name).path for name, recipe in recipes.items()),
    ]


@pytest.mark.parametrize("client", ["sentence_transformers", "fastembed", "optimum"])
def test_client_gives_the_same_vectors_as_encoder(
    client: str, run_client: Callable[..., None], bundles: list[Path], tmp_path: Path
) -> None:
    """In one process for all bundles, which imports the client once."""
    texts, out = tmp_path / "texts.json", tmp_path / "vectors.npz"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    before = [sorted(bundle.rglob("*")) for bundle in bundles]
    run_client(CLIENTS, client, texts, out, *bundles)
    with np.load(out) as found:
        for bundle in bundles:
            check_vectors(bundle, found[bundle.name])
    assert [sorted(bundle.rglob("*")) for bundle in bundles] == before


def check_vectors(bundle: Path, theirs: np.ndarray) -> None:
    with Encoder(bundle) as encoder:
        ours = encoder.encode(TEXTS)
    assert theirs.shape == ours.shape, bundle.name
    difference = (np.abs(theirs - ours).max(axis=1) / np.linalg.norm(ours, axis=1)).max()
    assert difference <= (1e-6 if bundle.name == "minilm" else 1e-5), (bundle.name, difference)


def test_sentence_transformers_5_opens_a_bundle_and_a_saved_copy(
    run_client_with_whiten: Callable[..., None], minilm_bundle: Path, tmp_path: Path
) -> None:
    texts, out = tmp_path / "texts.json", tmp_path / "vectors.npz"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    run_client_with_whiten(CLIENTS, "bundle_transformer", texts, out, minilm_bundle)
    with Encoder(minilm_bundle) as encoder, Encoder(tmp_path / "saved") as copy, np.load(out) as arrays:
        want = encoder.encode(TEXTS)
        found = [arrays["opened"], arrays["saved"], copy.encode(TEXTS)]
    for vectors in found:
        assert (np.abs(vectors - want).max(axis=1) / np.linalg.norm(want, axis=1)).max() <= 1e-6


def test_mteb_scores_equal_scipy_scikit_learn_and_the_evaluation_of_search(
    minilm_bundle: Path, run_client_with_whiten: Callable[..., None], tmp_path: Path
) -> None:
    """Compare mteb's scores on three local tasks with scores that are computed from the encoder's vectors."""
    texts = sentences(400)
    pairs = similar_pairs(texts[:100])
    labels = [len(text) > np.median([len(text) for text in texts]) for text in texts]
    data, out = tmp_path / "data.json", tmp_path / "scores.json"
    content = {
        "pairs": pairs,
        "train": labelled(texts[:200], labels[:200]),
        "test": labelled(texts[200:], labels[200:]),
        "search": (found := searched(texts)),
    }
    data.write_text(json.dumps(content), "utf-8")
    run_client_with_whiten(Path(__file__).with_name("with_mteb.py"), minilm_bundle, data, out, HF_HOME=str(tmp_path))
    scores = json.loads(out.read_text("utf-8"))
    with Encoder(minilm_bundle) as encoder:
        first, second = (encoder.encode(pairs[name], normalize_embeddings=True) for name in ("sentence1", "sentence2"))
        vectors = encoder.encode(texts)
        known = encoder.dimension, encoder.max_seq_length
    spearman = spearmanr((first * second).sum(axis=1), pairs["score"]).statistic
    assert 0.2 < spearman < 0.99
    assert scores["sts"] == pytest.approx({"cosine_spearman": spearman, "spearman": spearman}, abs=1e-5)
    classifier = LogisticRegression(max_iter=100).fit(vectors[:200], labels[:200])
    accuracy = classifier.score(vectors[200:], labels[200:])
    assert 0.55 < accuracy < 0.99
    measures = search_scores(minilm_bundle, found, tmp_path / "collection")
    assert 20 < measures["nDCG@10"] < 90
    assert measures == pytest.approx({name: 100 * value for name, value in scores["search"].items()}, abs=6e-4)
    assert scores["accuracy"] == pytest.approx(accuracy, abs=0.006)  # one text; mteb shuffles those to learn from
    assert (scores["embed_dim"], scores["max_tokens"]) == known
    retrieval = ["passage: ", "query: ", "passage: "]
    assert scores["prompts"] == ["alike: ", "similar: ", "alike: ", "class: ", "class: ", "class: ", *retrieval]
    assert scores["model_name"] == f"whiten/{encoder.manifest.name}"


def searched(texts: list[str]) -> dict[str, Any]:
    """Return documents with titles, and queries of every third word of two or three documents, with grades.

    Ten more queries are documents, under their ids, as in ArguAna. One judgement is of a document that is not there.
    """
    halves = [(text[: len(text) // 3], text[len(text) // 3 :]) for text in texts]
    corpus = [{"id": f"d{n}", "title": title, "text": text} for n, (title, text) in enumerate(halves)]
    queries, relevant = [], {}
    for n in range(40):
        members = [n, n + 100, n + 200][: 2 + n % 2]
        queries.append({"id": f"q{n}", "text": " ".join(word for m in members for word in texts[m].split()[::3])})
        relevant[f"q{n}"] = {f"d{m}": 1 + place for place, m in enumerate(members)}
    for n in range(50, 60):
        queries.append({"id": f"d{n}", "text": halves[n][1]})
        relevant[f"d{n}"] = {f"d{n + 100}": 1, f"d{n + 101}": 1}
    relevant["q0"]["gone"] = 1
    return {"corpus": corpus, "queries": queries, "relevant": relevant}


def search_scores(bundle: Path, found: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return what `whiten eval retrieval` measures."""
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = ({("_id" if key == "id" else key): value for key, value in row.items()} for row in found[name])
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    lines = [f"{query}\t{key}\t{grade}" for query, own in found["relevant"].items() for key, grade in own.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", "utf-8")
    result = ok("eval", "retrieval", bundle, "--data", folder, "--json")
    measures: dict[str, float] = json.loads(result.stdout)["collections"][0]["scores"][0]["measures"]
    return measures


def similar_pairs(texts: list[str]) -> dict[str, list[str] | list[float]]:
    """Return each text with its beginning; the score is the share of the text that is kept."""
    kept = np.random.default_rng(0).uniform(0.1, 1, len(texts))
    starts = [text[: max(1, round(share * len(text)))] for text, share in zip(texts, kept, strict=True)]
    return {"sentence1": texts, "sentence2": starts, "score": kept.tolist()}


def labelled(texts: list[str], labels: list[bool]) -> dict[str, list[str] | list[int]]:
    return {"text": texts, "label": [int(label) for label in labels]}
