"""Test curves over dimensions, shrinkage and β against a fit for each value."""

import numpy as np
import pytest

from support.sts import write_paper_layout
from support.sweeps import made_score
from support.task_vectors import direct_score, made
from whiten_evaluation.sweep.curves import BETAS, SHRINKAGES, Spectrum, notable, scores_by_dimension, scores_by_fit
from whiten_evaluation.sweep.scoring import white_scores
from whiten_evaluation.tasks.sts_files import Task, read_sts
from whiten_whitening.maps import WhiteningSpec
from whiten_whitening.moments import Moments

SPECS = [*(WhiteningSpec(shrinkage=value) for value in SHRINKAGES), *(WhiteningSpec(beta=value) for value in BETAS)]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, ("STS15",))
    return read_sts(folder, ("STS15",)).tasks[0]


def test_scores_by_dimension_equal_direct_computation(task: Task) -> None:
    data = made(task)
    found = scores_by_dimension(data, (2, 4), [2, 5, 12])  # in one dimension all cosines are 1 or -1
    want = [direct_score(data, (2, 4), WhiteningSpec(), kept) for kept in (2, 5, 12)]
    assert found.tolist() == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize("layers", [(2,), (2, 4), (0,)], ids=["one", "two", "singular"])
def test_scores_by_shrinkage_and_beta_equal_a_fit_for_each(task: Task, layers: tuple[int, ...]) -> None:
    data = made(task)
    fitted = Spectrum.of(data.moments(data.sum_of(layers)))
    found = scores_by_fit(data, layers, fitted, SPECS)
    assert found.tolist() == pytest.approx([direct_score(data, layers, spec) for spec in SPECS], abs=0.05)
    assert found[0] == pytest.approx(white_scores(data, [layers])[0], abs=0.05)
    assert np.ptp(found) > 0.5  # the values matter


def test_whitening_can_be_fitted_on_another_corpus(task: Task) -> None:
    data, corpus = made(task), np.random.default_rng(1).normal(size=(500, 12)) * np.geomspace(9, 1, 12)
    moments = Moments.of(corpus)
    found = scores_by_fit(data, (2,), Spectrum.of(moments), SPECS)
    want = [direct_score(data, (2,), spec, corpus=moments) for spec in SPECS]
    assert found.tolist() == pytest.approx(want, abs=0.05)


def test_values_that_need_more_sentences_have_no_score(task: Task) -> None:
    data = made(task)
    few = Spectrum.of(Moments.of(np.random.default_rng(0).normal(size=(10, 12))))
    found = scores_by_fit(data, (2,), few, SPECS)
    missing = [spec for spec, score in zip(SPECS, found, strict=True) if np.isnan(score)]
    assert missing == [spec for spec in SPECS if spec.shrinkage == 0 or (spec.shrinkage == "none" and spec.beta > 0)]


def test_combinations_with_curves_are_the_default_ones_and_the_best() -> None:
    values = {(0,): 1.0, (1,): 5.0, (4,): 2.0, (1, 4): 3.0, (2, 3): 9.0}
    scores = [made_score("mean", "target", layers, value) for layers, value in values.items()]
    scores += [made_score("mean", "corpus", (3,), 20.0), made_score("cls", "target", (2,), 30.0)]
    assert notable(scores, "mean", (0, 1, 2, 3, 4), ("target", "corpus")) == {
        (1, 4): "the paper's choice",
        (4,): "the top layer",
        (0,): "the lookup table",
        (1,): "the best layer",
        (2, 3): "the best of all",
    }
    assert notable(scores[5:], "mean", (0, 1, 2, 3, 4), ("target", "corpus")) == {(3,): "the best layer"}
    assert notable(scores[5:], "mean", (0, 1, 2, 3, 4), ("target",)) == {}
