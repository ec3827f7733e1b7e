"""Test whitenings that are fitted on sentences with a prompt of the model."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Pooling

from support.bundles import contents
from support.cli import ok, refused
from support.corpus import sentences
from support.published import save, transformer
from whiten import Encoder
from whiten_runtime.bundle.manifest import read_manifest

PROMPTS = {"query": "the question of a reader: ", "passage": "", "same": ""}
FIT = ("--whitening", "pca", "--dim", "8", "-q")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    first = transformer("bert", max_seq_length=48)
    pool = Pooling(first.get_embedding_dimension(), "mean")
    return save([first, pool], tmp_path_factory.mktemp("prompted") / "m", prompts=PROMPTS)


@pytest.fixture(scope="module")
def fitted(model: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fitted") / "b"
    ok("export", model, *FIT, "--corpus", corpus_file, "--prompt-name", "query", "--out", out)
    return out


def test_texts_with_the_prompt_come_out_white(fitted: Path) -> None:
    whitening = read_manifest(fitted).whitening
    assert whitening is not None
    assert whitening.prompt_name == "query"
    assert " with the prompt query" in ok("info", fitted).stdout
    texts = sentences(400)
    with Encoder(fitted) as encoder:
        prompted, plain = (encoder.encode(texts, prompt_name=name).astype(np.float64) for name in ("query", None))
    np.testing.assert_allclose(prompted.mean(axis=0), 0, atol=5e-2)
    np.testing.assert_allclose(np.cov(prompted.T), np.eye(8), atol=0.1)
    assert np.abs(plain.mean(axis=0)).max() > 0.5


def test_a_refit_on_the_prompt_is_the_same_and_without_it_another(
    fitted: Path, corpus_file: Path, tmp_path: Path
) -> None:
    for name, options in (("same", ("--prompt-name", "query")), ("other", ())):
        ok("refit", fitted, *FIT, "--corpus", corpus_file, *options, "--out", tmp_path / name)
    same, other, first = map(read_manifest, (tmp_path / "same", tmp_path / "other", fitted))
    assert same.whitening == first.whitening
    assert same.space == first.space != other.space
    assert "prompt_name" not in json.loads((tmp_path / "other" / "whiten.json").read_text())["whitening"]


def test_drift_is_measured_with_the_prompt(fitted: Path, corpus_file: Path) -> None:
    assert json.loads(ok("drift", fitted, "--input", corpus_file, "--json").stdout)["verdict"] == "close"


def test_a_prompt_that_adds_nothing_is_not_recorded(model: Path, corpus_file: Path, tmp_path: Path) -> None:
    found = []
    for number, options in enumerate(((), ("--prompt-name", "same"))):
        out = tmp_path / str(number) / "b"
        ok("export", model, *FIT, "--corpus", corpus_file, *options, "--out", out)
        found.append(contents(out))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--whitening", "pca", "--prompt-name", "nothing"), "the prompts of m are: 'document', 'passage', "),
        (("--whitening", "none", "--prompt-name", "query"), "prompt-name is for fitting a whitening"),
    ],
)
def test_a_name_without_a_use_is_refused(model: Path, options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refused("export", model, *options, "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_statistics_have_their_own_prompt(fitted: Path, tmp_path: Path) -> None:
    error = refused("refit", fitted, "--stats", tmp_path / "s", "--prompt-name", "query", "--out", tmp_path / "b")
    assert "--prompt-name and --max-sentences are for --corpus" in error
