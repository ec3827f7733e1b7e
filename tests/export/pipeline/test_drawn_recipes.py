"""Test that a drawn recipe is refused before weights are loaded, or exported as it says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.families import WIDTH
from whiten import Encoder, UsageError
from whiten_export import export as pipeline
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe

pytestmark = pytest.mark.slow


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of choices by name, most of which are left out."""
    return st.fixed_dictionaries({}, optional=values)


LAYERS = st.sampled_from([(0,), (1,), (1, 4), (-1,), (4,), (0, 0), (9,), (), (1, 2, 3)])
SHRINKAGES = st.sampled_from(["none", "ledoit-wolf", "oas", 0.0, 0.3, 1.0, 1.5])
CHOICES = some(
    layers=LAYERS,
    pooling=st.sampled_from(["mean", "cls", "last", "max", "mean+max", "pooler", "sif", "weightedmean"]),
    max_length=st.sampled_from([1, 2, 16, 64, 1000]),
    whitening=st.sampled_from(["pca", "zca", "pca-cor", "zca-cor", "centre", "partial", "auto", "default", None]),
    dim=st.sampled_from([1, 8, WIDTH, WIDTH + 1, 2 * WIDTH]),
    shrinkage=SHRINKAGES,
    max_sentences=st.sampled_from([2, 30, 200, "all"]),
    precision=st.sampled_from(["fp32", "fp16"]),
    normalize=st.booleans(),
    matryoshka=st.sampled_from([(8,), (8, 16), (100,)]),
)


@settings(max_examples=20)
@given(choices=CHOICES)
def test_recipe_is_refused_before_weights_are_loaded_or_exported(
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
    choices: dict[str, Any],
) -> None:
    out = tmp_path_factory.mktemp("drawn") / "b"
    corpus = {} if choices.get("whitening", "auto") is None else {"corpus": (str(corpus_file),)}
    built: list[object] = []
    build = pipeline.build_graph

    def spy(*arguments: Any) -> Any:
        built.append(arguments)
        return build(*arguments)

    pipeline.build_graph = spy  # type: ignore[assignment]
    try:
        export_bundle(Recipe(str(checkpoint("bert")), **corpus, **choices), out)
    except UsageError:
        assert not built
        assert not out.exists()
        return
    finally:
        pipeline.build_graph = build
    with Encoder(out) as encoder:
        vectors = encoder.encode(["a dog", "the cat and the fox"])
        assert encoder.verify().min_cosine > 0.99
        assert np.isfinite(vectors).all()
        assert vectors.shape[1] == choices.get("dim", encoder.manifest.dimension)
        if choices.get("normalize"):
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        manifest = encoder.manifest
        for name in ("pooling", "precision", "max_length"):
            if name in choices:
                assert getattr(manifest, {"max_length": "max_seq_length"}.get(name, name)) == choices[name]
