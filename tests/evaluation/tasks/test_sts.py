"""Test the protocol against scipy, and the paired bootstrap against resampling by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from support.corpus import sentences
from support.sts import write_paper_layout
from whiten import Encoder
from whiten_evaluation.embedding import embed_texts, storages
from whiten_evaluation.sts import (
    SUBSETS,
    StsData,
    StsScore,
    Subset,
    Task,
    interval,
    read_sts,
    resampled,
    score_sts,
    sts_rows,
)
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> StsData:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, tuple(SUBSETS))
    return read_sts(folder)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / norms)


def by_hand(bundle: Path, task: Task) -> tuple[float, float, float]:
    """Compute mean, wmean and all of a task by loops and scipy."""
    with Encoder(bundle) as encoder:
        similarities = [
            cosines(encoder.encode(list(subset.first)), encoder.encode(list(subset.second))) for subset in task.subsets
        ]
    gold = [subset.scores for subset in task.subsets]
    each = [100 * spearmanr(a, b).statistic for a, b in zip(similarities, gold, strict=True)]
    weighted = np.average(each, weights=[len(part) for part in gold])
    together = 100 * spearmanr(np.concatenate(similarities), np.concatenate(gold)).statistic
    return float(np.mean(each)), float(weighted), together


def scored(bundle: Path, data: StsData) -> StsScore:
    """Score one bundle's float32 vectors."""
    vectors = embed_texts(bundle, data.texts)
    (score,) = score_sts(data, sts_rows(data, "b", bundle, vectors, storages(bundle, (), ())))
    return score


@pytest.fixture(scope="module")
def other_bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that exports a bundle of another kind, on its first and last layer."""
    folder = tmp_path_factory.mktemp("others")
    words = folder / "words.txt"
    random = np.random.default_rng(0)
    vocabulary = sorted({word.lower() for text in sentences(300) for word in text.split()})
    words.write_text("\n".join(f"{word} {' '.join(f'{x:.4f}' for x in random.normal(1, 1, 8))}" for word in vocabulary))

    def make(name: str) -> Path:
        model, options = {
            "int8": (checkpoint("bert", 4), {"precision": "int8", "dim": 32, "max_sentences": 600}),
            "normalised": (checkpoint("bert"), {"normalize": True, "max_sentences": 600}),
            "raw": (checkpoint("bert"), {"whitening": None, "normalize": True}),
            "sif": (words, {"pooling": "sif", "max_sentences": 600}),
        }[name]
        layers = (0,) if name == "sif" else (1, -1)
        return export_bundle(Recipe(str(model), layers=layers, **options), folder / name).path

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "normalised", "raw", "sif"])
def test_scores_of_other_kinds_of_bundles(other_bundle: Callable[..., Path], data: StsData, name: str) -> None:
    path, task = other_bundle(name), data.tasks[0]
    score = scored(path, StsData((task,), {}))
    assert score.tasks[0].mean == pytest.approx(by_hand(path, task)[0], abs=0.02)


def test_intervals_equal_resampling_by_hand() -> None:
    random = np.random.default_rng(0)
    gold = [random.normal(size=200), random.normal(size=120)]
    first = [part + random.normal(size=len(part)) for part in gold]
    second = [part + 1.5 * random.normal(size=len(part)) for part in gold]
    subsets = tuple(Subset("made", (), (), part, Path()) for part in gold)
    found = resampled([Task("made", subsets)], [[first], [second]], 2000, seed=1)[:, 0]
    assert resampled([Task("made", subsets)], [[[np.zeros(200), np.ones(120)]]], 1, seed=1) == 0  # constant values
    differences = []
    for _ in range(1000):
        total = 0.0
        for a, b, scores in zip(first, second, gold, strict=True):
            rows = random.integers(0, len(scores), len(scores))
            total += 100 * (spearmanr(b[rows], scores[rows])[0] - spearmanr(a[rows], scores[rows])[0])
        differences.append(total / 2)
    mine, theirs = interval(found[1] - found[0]), np.quantile(differences, [0.025, 0.975])
    assert (mine.low, mine.high) == pytest.approx(theirs, abs=1.5)
    assert mine.high < 0
