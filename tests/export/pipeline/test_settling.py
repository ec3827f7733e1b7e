"""Test that exports and refits stop fitting where more sentences would not move the map."""

import json
from pathlib import Path

import pytest

from support.cli import invoke, ok
from support.vectors import write_word_vectors
from whiten import Encoder
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.corpus import BUILTIN_CORPUS, builtin_sentences
from whiten_whitening.choosing import SETTLED

WIDTH = 12


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    write_word_vectors(path, [sentence for _, sentence in builtin_sentences()[:4000]], WIDTH)
    return path


@pytest.fixture(scope="module")
def settled(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("settled") / "b"
    ok("export", words, "--out", bundle)
    return bundle


def test_an_export_stops_and_its_manifest_says_why(settled: Path) -> None:
    whitening = read_manifest(settled).whitening
    assert whitening.settled is not None
    assert (whitening.settled.available, whitening.settled.bound) == (15_600, SETTLED)
    assert whitening.settled.difference <= SETTLED
    assert whitening.n_samples == whitening.corpus[0].sentences < 8000


def test_all_sentences_are_taken_where_that_is_asked_for(words: Path, settled: Path, tmp_path: Path) -> None:
    for options, n in (("--all-sentences",), 15_600), (("--max-sentences", "9000"), 9000):
        bundle = tmp_path / f"b{n}"
        ok("export", words, *options, "--out", bundle)
        whitening = read_manifest(bundle).whitening
        assert (whitening.n_samples, whitening.settled) == (n, None)
    texts = ["a small river", "they said that it was late", "the old garden"]
    with Encoder(settled) as one, Encoder(bundle) as other:
        cosines = [x @ x.T for x in (model.encode(texts, normalize_embeddings=True) for model in (one, other))]
    assert abs(cosines[0] - cosines[1]).max() < 0.1


def test_a_refit_stops_where_the_export_does_and_a_fit_never(words: Path, settled: Path, tmp_path: Path) -> None:
    result = invoke(whiten, "refit", settled, "--corpus", BUILTIN_CORPUS, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.stderr
    assert read_manifest(tmp_path / "r").whitening.settled == read_manifest(settled).whitening.settled
    assert read_manifest(tmp_path / "r").space == read_manifest(settled).space
    result = invoke(whiten, "fit", settled, "--corpus", BUILTIN_CORPUS, "-o", tmp_path / "s", "--json")
    assert json.loads(result.stdout)["sentences"] == 15_600
    options = ("--corpus", BUILTIN_CORPUS, "--all-sentences", "--out", tmp_path / "a")
    assert invoke(whiten, "refit", settled, *options).exit_code == 0
    assert read_manifest(tmp_path / "a").whitening.settled is None


def test_a_corpus_that_moves_the_map_to_its_end_is_recorded_in_the_order_of_its_sources(
    words: Path, tmp_path: Path
) -> None:
    """A full whitening of as many dimensions as this has not settled with so few sentences."""
    lines = [sentence for _, sentence in builtin_sentences()]
    (tmp_path / "a.txt").write_text("\n".join(lines[:2000]), "utf-8")
    (tmp_path / "b.txt").write_text("\n".join(lines[2000:3100]), "utf-8")
    corpora = ("--corpus", tmp_path / "a.txt", "--corpus", tmp_path / "b.txt")
    spaces = []
    for name, options in (("m", ()), ("o", ("--all-sentences",))):
        ok("export", words, "--whitening", "zca", *corpora, *options, "--out", tmp_path / name)
        manifest = read_manifest(tmp_path / name)
        assert manifest.whitening.settled is None
        assert [record.sentences for record in manifest.whitening.corpus] == [2000, 1100]
        spaces.append(manifest.space)
    assert spaces[0] == spaces[1]


def test_few_sentences_are_warned_of_where_the_map_rescales(words: Path, settled: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("".join(f"{text}\n" for _, text in builtin_sentences()[: 9 * WIDTH]), "utf-8")
    few = ("--corpus", tmp_path / "few.txt", "--whitening", "pca")
    for command, warned in (
        (("export", words, *few), True),
        (("refit", settled, *few), True),
        (("refit", settled, *few, "--beta", 0), False),
    ):
        said = ok(*command, "--out", tmp_path / "b", "--force").stderr
        assert (f"{9 * WIDTH} sentences for {WIDTH} dimensions are few" in said) == warned, command
        assert (BUILTIN_CORPUS in said) == warned, command
