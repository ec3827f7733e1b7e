"""Test which prompts of a bundle are evaluated, how vectors are stored, and what the commands import."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.bundles import copy_bundle
from support.cli import python
from support.corpus import sentences
from support.vectors import ROUNDING, worst
from whiten import Coder, Encoder, UsageError
from whiten_evaluation.embedding import check_bundles, embed_texts, storages

TEXTS = ("a text", "another text of some words", "a text")


@pytest.fixture
def changed(tiny_bundle: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the bundle and changes some fields of it, in all of its files."""

    return lambda **changes: copy_bundle(tiny_bundle, tmp_path / str(len(list(tmp_path.iterdir()))), **changes)


@pytest.mark.parametrize(("name", "prompt"), [(None, "similar: "), ("query", "query: ")])
def test_texts_get_the_prompt_that_is_asked_for(
    changed: Callable[..., Path], tiny: Encoder, name: str | None, prompt: str
) -> None:
    bundle = changed(prompts={"query": "query: ", "sts": "similar: "}, default_prompt_name="sts")
    check_bundles([bundle], name)
    found = embed_texts(bundle, TEXTS, prompt_name=name)
    assert list(found.rows) == ["a text", "another text of some words"]
    assert worst(found.of(TEXTS), tiny.encode([prompt + text for text in TEXTS])) < ROUNDING


def test_unknown_prompt_is_refused_before_a_bundle_is_loaded(changed: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="the bundle's prompts are: 'query'"):
        check_bundles([changed(prompts={"query": "query: "})], "sts")


def test_stored_vectors_are_near_the_whole_ones(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle) as encoder:
        rows = encoder.encode(sentences(50))
    ways = storages(tiny_bundle, ("int8", "binary"), (8,))
    assert [(way.name, way.bytes(rows.shape[1])) for way in ways] == [
        ("float32", 128),
        ("int8", 36),
        ("binary", 4),
        ("codes", 8),
    ]
    steps = np.abs(rows).max(axis=1, keepdims=True) / 127
    assert (np.abs(ways[1].document(rows) - rows) <= steps / 2 + 1e-6).all()
    assert np.array_equal(ways[2].document(rows), np.where(rows > 0, 1, -1))
    coder = Coder.of(tiny_bundle, 8)
    assert np.array_equal(ways[3].document(rows), coder.decode(coder.encode_array(rows)))


HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "onnx", "onnx_ir", "onnxruntime", "mteb")


def test_commands_import_only_packages_of_the_runtime() -> None:
    program = (
        f"import sys, whiten_evaluation.commands.sweep\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(program, check=True).stdout.strip() == "[]"
