"""Test the descriptions of records in words."""

from typing import Any

import pytest

from whiten_runtime.bundle.records import WhiteningRecord


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shrinkage": 0.5, "shrinkage_estimator": "fixed"}, "soft whitening, shrinkage 0.5"),
        ({"shrinkage": 0.1234, "shrinkage_estimator": "oas"}, "soft whitening, shrinkage 0.123 by oas"),
        ({}, "full whitening (pca)"),
        ({"method": "zca", "shrinkage": 0.5}, "soft whitening (zca), shrinkage 0.5"),
        ({"beta": 0.5}, "partial whitening (pca), beta 0.5"),
        ({"beta": 0.0, "shrinkage": 0.5}, "centred only"),
        ({"beta": 0.0, "common_components": 2}, "centred only, 2 common components removed"),
        ({"method": "none", "beta": 0.0, "common_components": 1}, "not whitened, 1 common component removed"),
    ],
)
def test_whitening_in_words(changes: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"method": "pca", "beta": 1.0, "shrinkage": 0.0, "eigenvalue_floor": 1e-12}
    record = WhiteningRecord(**{**usual, **changes}, rank=3, n_samples=10, corpus=())
    assert record.description == words
