"""Test the report of how many of a corpus's words have a vector, by exports and refits of word vectors."""

import json
from pathlib import Path

import pytest
from whiten_export.pipeline.coverage import report_coverage

from support.cli import invoke
from support.word_vectors import write_word_vectors
from whiten_export.commands.export import export
from whiten_export.sources.lookup.word_tokenizer import word_tokenizer
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.reporter import Reporter

WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "ran")


def write_words(path: Path, *more: str) -> Path:
    write_word_vectors(path, [*WORDS, *more], 3)
    return path


def write_corpus(path: Path, *texts: str) -> Path:
    """Write each text with each of the words after it, so that the vectors differ."""
    path.write_text("".join(f"{text} {word}\n" for word in WORDS for text in texts), "utf-8")
    return path


def lines_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "have a vector" in line]


@pytest.mark.parametrize("options", [(), ("--pooling", "sif", "--whitening", "none")], ids=["mean", "sif"])
def test_export_reports_the_share_of_words_with_a_vector(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Punctuation and numbers do not count: of 10 words in 2 texts, "purple" has no vector."""
    corpus = write_corpus(tmp_path / "c.txt", "The cat, 1,000.5 times: purple sat!", "On a mat")
    words = write_words(tmp_path / "words.txt", "times")
    result = invoke(export, words, *options, "--corpus", corpus, "--out", tmp_path / "b")
    assert result.exit_code == 0, result.stderr
    assert lines_of(result.stderr) == ["· 90.0 % of the corpus's 80 words have a vector"]


def test_share_below_the_bound_is_a_warning(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.txt", "die Katze lag auf")
    result = invoke(export, write_words(tmp_path / "words.txt"), "--corpus", corpus, "--out", tmp_path / "b")
    assert result.exit_code == 0, result.stderr
    (line,) = lines_of(result.stderr)
    assert line.startswith("warning: only 20.0 % of the corpus's 40 words have a vector; wanted 80 % or more")


def test_fit_and_refit_of_a_bundle_report_the_share(tmp_path: Path) -> None:
    words, bundle = write_words(tmp_path / "words.txt"), tmp_path / "b"
    assert invoke(export, words, "--whitening", "none", "--out", bundle).exit_code == 0
    corpus = write_corpus(tmp_path / "c.txt", "the cat sat on a blue mat")
    for arguments in (("fit", "-o", tmp_path / "s"), ("refit", "--out", tmp_path / "n")):
        result = invoke(whiten, arguments[0], bundle, "--corpus", corpus, *arguments[1:])
        assert result.exit_code == 0, result.stderr
        assert lines_of(result.stderr) == ["· 87.5 % of the corpus's 64 words have a vector"]


class Remembering(Reporter):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def report_on(folder: Path, texts: list[str], sentences: int) -> Remembering:
    """Return what is reported on a corpus of these texts, of which the first `sentences` are counted."""
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    reporter = Remembering()
    tokenizer = word_tokenizer(WORDS, reporter).json
    report_coverage("words", tokenizer, Corpus((str(folder / "c.jsonl"),), "text", None), reporter, sentences)
    return reporter


@pytest.mark.parametrize(
    ("texts", "sentences", "want"),
    [
        (["the cat"] * 3, 2, "100.0 % of the 4 words of the corpus's first 2 sentences have a vector"),
        (["the cat"] * 2, 2, "100.0 % of the corpus's 4 words have a vector"),
        (["the cat " * 1000, "blue"], 9, "99.9 % of the corpus's 2,001 words have a vector"),
        (["the cat \ud800"], 9, "100.0 % of the corpus's 2 words have a vector"),
    ],
)
def test_words_of_the_first_sentences_are_counted(tmp_path: Path, texts: list[str], sentences: int, want: str) -> None:
    reporter = report_on(tmp_path, texts, sentences)
    assert (reporter.stages, reporter.warnings) == ([want], [])


@pytest.mark.parametrize(("known", "warnings"), [(799, 1), (800, 0)])
def test_bound_of_the_warning(tmp_path: Path, known: int, warnings: int) -> None:
    reporter = report_on(tmp_path, ["cat " * known + "blue " * (1000 - known)], 9)
    assert (len(reporter.warnings), len(reporter.stages)) == (warnings, 1 - warnings)


def test_corpus_without_a_letter_reports_none(tmp_path: Path) -> None:
    reporter = report_on(tmp_path, ["1 2 3."], 9)
    assert (reporter.stages, reporter.warnings) == ([], [])


def test_models_with_another_tokenizer_report_none(tiny_bundle: Path, corpus_file: Path, tmp_path: Path) -> None:
    result = invoke(whiten, "fit", tiny_bundle, "--corpus", corpus_file, "-o", tmp_path / "s")
    assert (result.exit_code, lines_of(result.stderr)) == (0, [])
