"""Test which prompts and how many coordinates of a bundle are evaluated, and what the commands import."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from support.bundles import copy_bundle
from support.cli import python
from support.vectors import ROUNDING, worst
from whiten import Encoder, UsageError
from whiten_evaluation.embedding import WhiteningSource, check_bundles, check_fit, embed_texts
from whiten_whitening.maps import WhiteningSpec

TEXTS = ("a text", "another text of some words", "a text")
CUT = WhiteningSource("bundle", dimension=8)


@pytest.fixture
def changed(tiny_bundle: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the bundle and changes some fields of it, in all of its files."""

    return lambda **changes: copy_bundle(tiny_bundle, tmp_path / str(len(list(tmp_path.iterdir()))), **changes)


@pytest.mark.parametrize(("name", "prompt"), [(None, "similar: "), ("query", "query: ")])
def test_texts_get_the_prompt_that_is_asked_for(
    changed: Callable[..., Path], tiny: Encoder, name: str | None, prompt: str
) -> None:
    bundle = changed(prompts={"query": "query: ", "sts": "similar: "}, default_prompt_name="sts")
    check_bundles([bundle], WhiteningSource(), {}, name)
    found = embed_texts(bundle, TEXTS, WhiteningSource(), prompt_name=name)
    assert list(found.rows) == ["a text", "another text of some words"]
    assert worst(found.of(TEXTS), tiny.encode([prompt + text for text in TEXTS])) < ROUNDING


def test_unknown_prompt_is_refused_before_a_bundle_is_loaded(changed: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="the bundle's prompts are: 'query'"):
        check_bundles([changed(prompts={"query": "query: "})], WhiteningSource(), {}, "sts")


@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_without_whitening_are_cut_to_matryoshka_dimensions(
    changed: Callable[..., Path], normalize: bool
) -> None:
    bundle = changed(whitening=None, matryoshka_dimensions=[16, 8], normalize=normalize)
    check_bundles([bundle], CUT, {})
    with Encoder(changed(whitening=None)) as whole:
        want = whole.encode(TEXTS)[:, :8]
    if normalize:
        want /= np.linalg.norm(want, axis=1, keepdims=True)
    assert worst(embed_texts(bundle, TEXTS, CUT).of(TEXTS), want) < ROUNDING
    with pytest.raises(UsageError, match="trained for vectors cut to 16, 8"):
        check_bundles([bundle], WhiteningSource("bundle", dimension=4), {})
    with pytest.raises(UsageError, match="there is no whitening, whose first coordinates mean no more than the others"):
        check_bundles([changed(whitening=None)], CUT, {})


@pytest.mark.parametrize("dimension", [0, 8, 16, 31, 32, 33])
@pytest.mark.parametrize("case", ["pca", "zca", "none", "matryoshka", "aligned"])
def test_the_same_dimensions_are_kept_as_by_encode_and_refused_in_the_same_words(
    changed: Callable[..., Path], tiny: Encoder, case: str, dimension: int
) -> None:
    own = msgspec.to_builtins(tiny.manifest.whitening)
    aligned = {"space": "0" * 16, "median_cosine": 0.95, "self_recall": 1.0, "sentences": 6000}
    whitening = {"zca": own | {"method": "zca"}, "aligned": own | {"alignment": aligned}, "pca": own}.get(case)
    bundle = changed(whitening=whitening, matryoshka_dimensions=[16, 8] if case == "matryoshka" else [])
    source = WhiteningSource("bundle", dimension=dimension)
    with Encoder(bundle) as encoder:
        try:
            want = encoder.encode(TEXTS, truncate_dim=dimension)
        except UsageError as error:
            for call in (lambda: check_bundles([bundle], source, {}), lambda: embed_texts(bundle, TEXTS, source)):
                with pytest.raises(UsageError) as caught:
                    call()
                assert str(caught.value) == f"{bundle}: {str(error).replace('truncate_dim', 'dim')}"
            return
    check_bundles([bundle], source, {})
    assert worst(embed_texts(bundle, TEXTS, source).of(TEXTS), want) < ROUNDING


def test_of_an_aligned_bundle_the_way_out_is_to_leave_the_alignment_out(
    changed: Callable[..., Path], tiny: Encoder
) -> None:
    aligned = {"space": "0" * 16, "median_cosine": 0.95, "self_recall": 1.0, "sentences": 6000}
    bundle = changed(whitening=msgspec.to_builtins(tiny.manifest.whitening) | {"alignment": aligned})
    with pytest.raises(UsageError, match="dim is 8, but the whitening is turned onto that of space 0{16}, which mixes"):
        check_bundles([bundle], CUT, {})


def test_whitening_that_is_fitted_is_named_in_full() -> None:
    assert str(WhiteningSource.parse("task", None)) == "task"
    named = WhiteningSource("task", WhiteningSpec("pca-cor", 8, 0.5, 0.3))
    assert str(named) == "task, pca-cor, beta 0.5, shrinkage 0.3, 8 dimensions"
    assert WhiteningSource.parse("task", None, "zca", "oas").spec == WhiteningSpec("zca", None, 1.0, "oas")


def test_too_few_sentences_are_enough_with_shrinkage() -> None:
    check_fit(20, 32, WhiteningSpec(shrinkage="oas"), "MR")
    with pytest.raises(UsageError, match=r"MR: 20 sentences cannot whiten 32 .* \(--shrinkage oas\), keep --dim 5 or"):
        check_fit(20, 32, WhiteningSpec(), "MR")
    with pytest.raises(UsageError, match=r"\(--shrinkage oas\), or choose other texts"):  # zca keeps no fewer
        check_fit(20, 32, WhiteningSpec("zca"), "MR")


def test_estimator_that_sif_lacks_the_moments_for_is_refused_before_embedding(changed: Callable[..., Path]) -> None:
    whitening = WhiteningSource.parse("task", None, shrinkage="ledoit-wolf")
    with pytest.raises(UsageError, match="needs the vectors' fourth moment"):
        check_bundles([changed(pooling="sif")], whitening, {"MR": 1000})


HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "onnx", "onnx_ir", "onnxruntime", "mteb")


def test_commands_import_only_packages_of_the_runtime() -> None:
    program = (
        f"import sys, whiten_evaluation.commands.sweep\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(program, check=True).stdout.strip() == "[]"
