"""nDCG@10 of a search, compared with trec_eval's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_whitening.measures import Judged, ndcg, spearman, spearman_error

GRADES = st.dictionaries(st.integers(0, 29), st.integers(1, 4), min_size=1, max_size=20)


@given(orders=st.lists(st.tuples(st.permutations(range(30)), GRADES), min_size=1, max_size=5))
def test_ndcg_is_that_of_trec_eval(orders: list[tuple[list[int], dict[int, int]]]) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    relevant = {f"q{n}": {f"d{row}": grade for row, grade in own.items()} for n, (_, own) in enumerate(orders)}
    runs = {f"q{n}": {f"d{row}": -float(place) for place, row in enumerate(o)} for n, (o, _) in enumerate(orders)}
    evaluated = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10"}).evaluate(runs)
    gains = [[own.get(row, 0) for row in order[:10]] for order, own in orders]
    wanted = [evaluated[f"q{n}"]["ndcg_cut_10"] for n in range(len(orders))]
    assert ndcg(gains, [list(own.values()) for _, own in orders]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("by_cosine", [False, True])
def test_documents_are_found_by_cosine_or_dot_product_and_equals_in_order(by_cosine: bool) -> None:
    documents = np.array([[1.0, 0.0], [3.0, 3.0], [1.0, 0.0], [0.0, 1.0]])
    judged = Judged(np.array([[1.0, 0.0]]), documents, ({2: 1},), (None,))
    place = 1 if by_cosine else 2  # the longest vector is before both by dot product
    assert judged.ndcg_at_10(judged.queries, documents, by_cosine) == pytest.approx(1 / np.log2(place + 2))


def test_fewer_documents_than_ten_are_enough() -> None:
    judged = Judged(np.eye(3), np.eye(3), ({0: 2, 1: 1}, {1: 1}, {2: 3}), (None,) * 3)
    assert judged.ndcg_at_10(judged.queries, judged.documents, True) == pytest.approx(1)


def test_a_relevant_document_that_is_not_there_lowers_the_score() -> None:
    judged = Judged(np.eye(2), np.eye(2), ({0: 1, -2: 2}, {-1: 1}), (None, None))
    wanted = [1 / (2 + 1 / np.log2(3)), 0]
    assert judged.ndcg_at_10(judged.queries, judged.documents, True) == pytest.approx(wanted)


def test_a_query_does_not_find_itself() -> None:
    """Eight texts, four of them queries: each finds itself first, then its answer."""
    rows = np.eye(4, 5)
    documents = np.concatenate([rows, rows + 0.2 * np.eye(1, 5, 4)])
    answers = tuple({row + 4: 1} for row in range(4))
    for own, score in (((None,) * 4, 1 / np.log2(3)), (tuple(range(4)), 1)):
        judged = Judged(rows, documents, answers, own)
        assert judged.ndcg_at_10(rows, documents, True) == pytest.approx(score)


@pytest.mark.parametrize("n", [50, 400])
def test_error_of_a_rank_correlation_is_that_of_new_draws(n: int) -> None:
    generator, values, errors = np.random.default_rng(0), [], []
    for _ in range(300):
        x = generator.standard_normal(n)
        y = x + generator.standard_normal(n)
        values.append(spearman(x, y))
        errors.append(spearman_error(x, y))
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)
    assert spearman_error(np.ones(n), np.arange(n)) == spearman(np.ones(n), np.arange(n)) == 0
