"""Test scores of combinations that are whitened on a corpus."""

from pathlib import Path

import numpy as np
import pytest

from support.sts import write_paper_layout
from support.sweeps import made_score
from support.task_vectors import direct_score, made
from whiten_evaluation.sweep.corpus import corpus_scores, read_corpus
from whiten_evaluation.sweep.graph import LayerGraph
from whiten_evaluation.sweep.store import LayerVectors
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec
from whiten_whitening.moments import Moments

WIDTH, LAYERS = 12, (0, 1, 2, 3)


def stored(rows: dict[str, int], vectors: np.ndarray, folder: Path) -> LayerVectors:
    """Vectors, [layers, n, d], as a sweep keeps them."""
    return LayerVectors(LayerGraph(folder, LAYERS, ("mean",), WIDTH, 0, 48), rows, vectors[None].astype(np.float32))


def fitted_on(n: int) -> np.ndarray:
    """Vectors of a corpus, anisotropic in another way than those of the task."""
    return np.random.default_rng(3).normal(size=(len(LAYERS), n, WIDTH)) * np.geomspace(20, 1, WIDTH) + 1


@pytest.mark.parametrize("threads", [1, 2])
def test_scores_equal_a_fit_for_each_combination(tmp_path: Path, threads: int) -> None:
    write_paper_layout(tmp_path, ("STS15", "STS-B"))
    tasks = read_sts(tmp_path, ("STS15", "STS-B")).tasks
    data = [made(task, len(LAYERS), WIDTH) for task in tasks]
    texts = [list(dict.fromkeys(task.texts)) for task in tasks]
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for some in texts for text in some))}
    vectors = np.zeros((len(LAYERS), len(rows), WIDTH), np.float32)
    for some, one in reversed(list(zip(texts, data, strict=True))):
        vectors[:, [rows[text] for text in some]] = one.vectors
    others = fitted_on(200)
    known = [made_score("mean", "target", (0, 2, 3), 50.0), made_score("mean", "none", (1, 2, 3), 40.0)]
    corpus = stored({f"sentence {row}": row for row in range(200)}, others, tmp_path)
    found = list(corpus_scores(stored(rows, vectors, tmp_path), corpus, tasks[:1], known, threads, Reporter()))
    assert {score.layers for score in found} == {
        *((0,), (1,), (2,), (3,)),
        *((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),
        *((0, 2, 3), (1, 2, 3)),
    }
    for score in found:
        if score.layers == (1,):
            assert score.average is None  # all texts of the task have the same vector
            continue
        moments = Moments.of(np.mean([others[layer] for layer in score.layers], axis=0))
        want = direct_score(data[0], score.layers, WhiteningSpec(), corpus=moments)
        assert score.average == pytest.approx(want, abs=0.05), score.layers


def test_too_few_sentences_give_no_score(tmp_path: Path) -> None:
    write_paper_layout(tmp_path, ("STS-B",))
    [task] = read_sts(tmp_path, ("STS-B",)).tasks
    data = made(task, len(LAYERS), WIDTH)
    vectors = stored({text: row for row, text in enumerate(dict.fromkeys(task.texts))}, data.vectors, tmp_path)
    corpus = stored({str(row): row for row in range(WIDTH + 1)}, fitted_on(WIDTH + 1), tmp_path)
    assert {score.average for score in corpus_scores(vectors, corpus, [task], [], 1, Reporter())} == {None}


def test_sentences_of_a_corpus_are_evenly_spaced_and_distinct(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"sentence {row // 2}" for row in range(202)) + "\n")
    found = read_corpus((str(path),), 5)
    assert found.name == "corpus.txt"
    assert len(found.texts) == len(set(found.texts)) == 50
    assert found.texts[0] == "sentence 0"
    assert found.texts[-1] == "sentence 100"
    assert len(read_corpus((str(path),), 99).texts) == 101


def test_built_in_corpus_is_enough_for_a_large_model() -> None:
    assert len(read_corpus((BUILTIN_CORPUS,), 768).texts) == 7680


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        read_corpus((str(tmp_path / "nowhere.txt"),), 5)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="holds no sentence"):
        read_corpus((str(tmp_path / "empty.txt"),), 5)
