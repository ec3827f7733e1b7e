"""Test how many sentences exports, refits and fits use, and that statistics give the map that their corpus gives."""

import json
from pathlib import Path

import pytest

from support.bundles import contents
from support.cli import ok
from support.vectors import write_word_vectors
from whiten_runtime.bundle.manifest import WhiteningRecord, read_manifest
from whiten_runtime.files.corpus import BUILTIN_CORPUS, builtin_sentences

WIDTH = 12
TAKEN = 12 * WIDTH


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    write_word_vectors(path, [sentence for _, sentence in builtin_sentences()[:4000]], WIDTH)
    return path


@pytest.fixture(scope="module")
def bundle(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "b"
    assert f"on {TAKEN} of 15,600 sentences" in ok("export", words, "--out", out).stderr
    return out


def whitening_of(bundle: Path) -> WhiteningRecord:
    whitening = read_manifest(bundle).whitening
    assert whitening is not None
    return whitening


def test_an_export_uses_twelve_sentences_a_dimension_or_as_many_as_are_asked_for(
    words: Path, bundle: Path, tmp_path: Path
) -> None:
    for options, used in ((), TAKEN), (("--max-sentences", 9000), 9000), (("--max-sentences", "all"), 15_600):
        ok("export", words, *options, "--out", tmp_path / "b", "--force")
        (corpus,) = whitening_of(tmp_path / "b").corpus
        assert (corpus.sentences, corpus.available) == (used, None if used == 15_600 else 15_600)
        assert whitening_of(tmp_path / "b").n_samples == used
        assert (read_manifest(tmp_path / "b").space == read_manifest(bundle).space) == (used == TAKEN)


def test_a_refit_uses_the_sentences_of_the_export_and_a_fit_all(bundle: Path, tmp_path: Path) -> None:
    ok("refit", bundle, "--corpus", BUILTIN_CORPUS, "--out", tmp_path / "b")
    assert whitening_of(tmp_path / "b").corpus == whitening_of(bundle).corpus
    assert read_manifest(tmp_path / "b").space == read_manifest(bundle).space
    made = json.loads(ok("fit", bundle, "--corpus", BUILTIN_CORPUS, "-o", tmp_path / "s", "--json").stdout)
    assert made["sentences"] == 15_600


def test_statistics_give_the_bundle_that_their_corpus_gives(
    words: Path, tiny_bundle: Path, corpus_file: Path, tmp_path: Path
) -> None:
    """What is left to a rule, such as the shrinkage, follows from the statistics alone, and so do all files."""
    ok("export", words, "--pooling", "sif", "--out", tmp_path / "sif")
    for old, shrinkage in ((tiny_bundle, 0.5), (tmp_path / "sif", 0.0)):
        stats, found = tmp_path / f"{old.name}.stats", []
        ok("fit", old, "--corpus", corpus_file, "-o", stats)
        for number, fitted_on in enumerate((("--corpus", corpus_file, "--max-sentences", "all"), ("--stats", stats))):
            new = tmp_path / f"{old.name}-{number}" / "new"
            new.parent.mkdir()
            ok("refit", old, *fitted_on, "--out", new)
            found.append(contents(new))
            assert (whitening_of(new).n_samples, whitening_of(new).shrinkage) == (400, shrinkage)
        assert found[0] == found[1]
