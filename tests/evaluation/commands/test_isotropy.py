"""Test whiten eval isotropy, and evaluations of bundles that a repository of the hub names."""

import json
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from support.bundles import contents
from support.cli import invoke, ok, refused
from support.corpus import sentences
from support.hub import Hub
from whiten_evaluation.commands.isotropy import isotropy
from whiten_whitening.codes.coder import Coder
from whiten_whitening.maps import Method

run = partial(ok, "eval", "isotropy")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(sentences(300)) + "\n", "utf-8")
    return path


def test_methods_are_fitted_on_the_texts(tiny_bundle: Path, texts: Path) -> None:
    options = [part for method in get_args(Method) for part in ("--whitening", method)]
    result = run(tiny_bundle, "--input", texts, "--json", *options)
    [bundle] = json.loads(result.stdout)["bundles"]
    assert list(bundle["fitted"]) == list(get_args(Method))
    scores = [record["iso_score"] for record in bundle["fitted"].values()]
    assert scores == pytest.approx([1] * 5, abs=1e-3)  # the covariance of these very texts becomes the identity
    assert bundle["before"]["iso_score"] < bundle["after"]["iso_score"] < 0.99
    half = json.loads(run(tiny_bundle, "--input", texts, "--json", "--whitening", "zca", "--shrinkage", "0.5").stdout)
    assert 0.1 < half["bundles"][0]["fitted"]["zca"]["iso_score"] < 0.99
    rows = run(tiny_bundle, "--input", texts, "--whitening", "pca", "--dim", 4).stdout.splitlines()
    assert "pca on these texts  4 " in rows[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shrinkage", "oas"], "need a whitening; name one with --whitening"),
        (["--dim", "4"], "need a whitening; name one with --whitening"),
        (["--whitening", "zca", "--dim", "4"], "dim 4 cannot be kept of zca"),
        (["--whitening", "pca", "--dim", "33"], "dim is 33, but the vectors have 32 dimensions"),
        (["--whitening", "pca", "--shrinkage", "much"], "shrinkage is 'much'"),
    ],
)
def test_errors_are_one_line(tiny_bundle: Path, texts: Path, options: list[str], message: str) -> None:
    assert message in refused("eval", "isotropy", tiny_bundle, "--input", texts, *options)


def test_too_few_texts_to_fit_are_refused_before_embedding(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("\n".join(sentences(20)) + "\n", "utf-8")
    result = invoke(isotropy, tiny_bundle, "--input", tmp_path / "few.txt", "--whitening", "zca")
    assert result.exit_code == 2
    assert "the texts: 20 sentences cannot whiten 32 dimensions" in result.stderr
    assert "·" not in result.stderr
    run(tiny_bundle, "--input", tmp_path / "few.txt", "--whitening", "zca", "--shrinkage", "oas")


def test_bundles_of_the_hub_are_evaluated_under_their_names(hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = contents(tiny_bundle)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences(400)) + "\n")
    result = ok("eval", "isotropy", "hf://org/tiny", tiny_bundle, "--input", texts, "--json")
    drifts = [ok("drift", bundle, "--input", texts, "--json").stdout for bundle in (tiny_bundle, "org/tiny")]
    assert Coder.of("hf://org/tiny").id == Coder.of(tiny_bundle).id
    first, second = json.loads(result.stdout)["bundles"]
    assert (first.pop("bundle"), second.pop("bundle")) == ("hf://org/tiny", str(tiny_bundle))
    assert first == second
    assert drifts[0] == drifts[1]
