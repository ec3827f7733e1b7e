"""Test which whitening is chosen: by rules, by pairs with scores, by searches."""

from functools import partial

import numpy as np
import pytest

from support.vectors import anisotropic
from whiten import UsageError
from whiten_whitening.choosing import Choice, choose_by_pairs, choose_by_rules, choose_by_search
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map
from whiten_whitening.measures import Judged, cosines
from whiten_whitening.moments import Moments, oas

pytestmark = pytest.mark.slow


def test_rules_use_training_spectrum_and_number_of_sentences() -> None:
    moments = Moments.of(anisotropic(2000, 20))
    plain = choose_by_rules(moments, 5)
    assert plain.spec == WhiteningSpec("pca", 5, shrinkage=0.5)
    assert plain.why == "nothing says that the model was trained for similarity"
    other = choose_by_rules(moments, 5, other_layers_tuned=True)
    assert other.spec == plain.spec
    assert other.why == "these layers were not trained for similarity"
    few = choose_by_rules(Moments.of(anisotropic(50, 20)), None)
    assert few.spec is not None
    assert few.spec.shrinkage == max(0.5, round(oas(Moments.of(anisotropic(50, 20))), 2))
    assert few.why.endswith("and the sentences are few")
    with pytest.raises(UsageError, match="1 sentences tell nothing"):
        choose_by_rules(Moments.of(anisotropic(1, 20)), None)
    assert choose_by_rules(Moments.of(anisotropic(50, 20)), None, 0.3).spec == WhiteningSpec(shrinkage=0.3)
    even = choose_by_rules(Moments.of(np.random.default_rng(0).normal(size=(2000, 20))), None)
    assert even.spec == WhiteningSpec(beta=0.0)
    assert even.why == "the vectors are nearly even without it"
    tuned = choose_by_rules(moments, 5, tuned=True)
    assert tuned.spec == WhiteningSpec("pca", 5, 0.0)
    assert tuned.why == "the model was trained for similarity, which whitening undoes"


@pytest.mark.parametrize(
    ("weights", "kind"),
    [("raw", "none"), ("centred", "centre"), ("whitened", "full"), ("soft", "soft"), ("removed", "all-but-the-top")],
)
def test_pairs_choose_the_candidate_that_made_the_scores(weights: str, kind: str) -> None:
    """Scores are the cosines of one of the candidates, which therefore wins with a correlation of 1."""
    vectors = anisotropic(3000, 16)
    moments = Moments.of(vectors)
    first, second = vectors[:400], vectors[400:800]

    def fit(spec: WhiteningSpec | None) -> WhiteningMap | None:
        return None if spec is None else fit_map(moments, spec)

    spec = {
        "raw": None,
        "centred": WhiteningSpec(beta=0.0),
        "whitened": WhiteningSpec(),
        "soft": WhiteningSpec(shrinkage=0.3),
        "removed": WhiteningSpec(beta=0.0, common_components=2),
    }[weights]
    fitted = None if spec is None else fit_map(moments, spec)
    mapped = [x if fitted is None else (x - fitted.mean) @ fitted.weight for x in (first, second)]
    norms = [np.linalg.norm(x, axis=1) for x in mapped]
    scores = (mapped[0] * mapped[1]).sum(axis=1) / (norms[0] * norms[1])
    choice = choose_by_pairs(fit, first, second, scores, None, "none")
    best = max(choice.candidates, key=lambda candidate: candidate.spearman)
    assert (best.whitening, best.dimension) == (kind, 14 if kind == "all-but-the-top" else 16)
    assert best.spearman == pytest.approx(1)
    assert choice.spec == spec
    assert f"best of {len(choice.candidates)} on 400 pairs (Spearman 100.00" in choice.why
    tried = {(c.whitening, c.beta, c.shrinkage, c.common_components, c.dimension) for c in choice.candidates}
    assert len(tried) == len(choice.candidates)


def fit_or_none(moments: Moments, spec: WhiteningSpec | None) -> WhiteningMap | None:
    return None if spec is None else fit_map(moments, spec)


@pytest.mark.parametrize(("pairs", "most"), [(10, 3), (100, 0), (400, 0)])
def test_noise_chooses_no_whitening(pairs: int, most: int) -> None:
    """Vectors are even already, and scores are their cosines with noise: no whitening can help."""
    others = 0
    for seed in range(10):
        generator = np.random.default_rng(seed)
        vectors = generator.standard_normal((2000, 16))
        moments = Moments.of(vectors)
        first, second = vectors[:pairs], vectors[pairs : 2 * pairs] + 0.5 * vectors[:pairs]
        scores = cosines(first, second) + 0.2 * generator.standard_normal(pairs)
        choice = choose_by_pairs(partial(fit_or_none, moments), first, second, scores, None)
        others += choice.spec is not None
        if choice.spec is None and "simplest" in choice.why:
            assert choice.why.startswith("the simplest within a standard error of the best of ")
            assert " ± " in choice.why.partition(", best ")[2]
    assert others <= most


def test_requested_dimension_is_kept() -> None:
    vectors = anisotropic(3000, 16)
    moments, scores = Moments.of(vectors), np.random.default_rng(0).normal(size=300)
    choice = choose_by_pairs(lambda spec: fit_map(moments, spec), vectors[:300], vectors[300:600], scores, 5, "oas")
    assert {(candidate.whitening, candidate.dimension) for candidate in choice.candidates} == {
        ("centre", 5), ("all-but-the-top", 5), ("soft", 5), ("partial", 5),
    }  # fmt: skip
    assert choice.spec is not None
    assert (choice.spec.dimension, choice.spec.shrinkage) == (5, "oas")
    choice = choose_by_pairs(lambda spec: fit_map(moments, spec), vectors[:300], vectors[300:600], scores, 16)
    assert {candidate.dimension for candidate in choice.candidates} == {16}
    assert "all-but-the-top" not in {candidate.whitening for candidate in choice.candidates}


def made_search(kind: str) -> Choice:
    """Choose for queries that are near their documents after one of the whitenings, and hidden before it."""
    vectors = anisotropic(3000, 16)
    moments = Moments.of(vectors)

    def fit(spec: WhiteningSpec | None) -> WhiteningMap | None:
        return None if spec is None else fit_map(moments, spec)

    documents = vectors[:300]
    noise = np.random.default_rng(0).normal(size=(300, 16))
    if kind == "none":
        queries = documents + 0.6 * noise * np.linalg.norm(documents, axis=1, keepdims=True) / 4
    else:
        whitening = fit_map(moments, WhiteningSpec())
        queries = documents + 0.4 * noise @ np.linalg.pinv(whitening.weight)
    judged = Judged(queries, documents, tuple({row: 1} for row in range(300)), (None,) * 300)
    return choose_by_search(fit, [judged], True, None, required=False)


def test_search_chooses_the_whitening_in_which_documents_are_near() -> None:
    assert made_search("full").spec == WhiteningSpec()
    chosen = made_search("none")
    assert chosen.spec is None or chosen.spec.beta == 0
    values = [candidate.ndcg_at_10 for candidate in chosen.candidates]
    assert all(isinstance(value, float) and 0 <= value <= 1 for value in values)
    assert f"best of {len(values)} on 300 queries (nDCG@10 {100 * max(values):.2f} ± " in chosen.why


def test_a_whitening_that_is_required_is_chosen_though_none_is_better() -> None:
    vectors, moments = np.eye(16) + 1, Moments.of(anisotropic(3000, 16))
    judged = Judged(vectors, vectors, tuple({row: 1} for row in range(16)), (None,) * 16)
    for required, spec in ((False, None), (True, WhiteningSpec(beta=0.0))):
        choice = choose_by_search(lambda spec: spec and fit_map(moments, spec), [judged], True, None, required=required)
        assert choice.spec == spec
