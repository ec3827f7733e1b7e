"""Test the stage for Ray Data: a batch comes out with vectors. tests/scale/clusters runs it on a cluster."""

from pathlib import Path

import numpy as np
import pytest

from whiten import Encoder, TextError, UsageError
from whiten.integrations.ray import Embed


def test_a_batch_gets_the_vectors_of_its_texts(tiny: Encoder, tiny_bundle: Path) -> None:
    batch = {"id": np.arange(2), "body": np.array(["A text.", "Another."], dtype=object)}
    done = Embed(tiny_bundle, "body", to="vector", normalize_embeddings=True)(batch)
    assert list(done) == ["id", "body", "vector"]
    np.testing.assert_allclose(done["vector"], tiny.encode(list(batch["body"]), normalize_embeddings=True), atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"body": np.array(["a"])}, UsageError, "a batch has no column 'text', only 'body'"),
        ({"text": np.array([1.5])}, TextError, "1.5"),
    ],
)
def test_a_batch_without_texts_is_refused(
    batch: dict[str, np.ndarray], error: type[Exception], message: str, tiny_bundle: Path
) -> None:
    with pytest.raises(error, match=message):
        Embed(tiny_bundle)(batch)
