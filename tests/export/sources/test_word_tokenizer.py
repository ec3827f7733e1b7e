"""Test whether the texts of word vectors are lower-cased, which the casing of the file's words decides."""

from pathlib import Path

import pytest

from support.cli import ok
from whiten_export.sources.word_vectors import SPECIALS, word_tokenizer
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.reporter import Reporter

LOWER = [f"word{number}" for number in range(490)]


def export_words(folder: Path, words: list[str]) -> tuple[Tokenizer, str]:
    """Export a file with these words, and return the bundle's tokenizer and what the command wrote to stderr."""
    (folder / "words.txt").write_text("".join(f"{word} {number} 1\n" for number, word in enumerate(words)), "utf-8")
    result = ok("export", folder / "words.txt", "--whitening", "none", "--out", folder / "b")
    return Tokenizer(folder / "b" / "tokenizer.json", 9), result.stderr


def found(words: list[str], text: str) -> list[str]:
    """Return the words of the file that a tokenizer finds in a text; "<|unknown|>" where there is none."""
    (ids,) = word_tokenizer(words, Reporter()).own_ids([text], 99)
    return [(*SPECIALS, *words)[number] for number in ids]


def test_texts_are_lower_cased_although_a_few_words_of_the_file_are_not(tmp_path: Path) -> None:
    tokenizer, stderr = export_words(tmp_path, [*LOWER, "iPhone", "iphone"])
    assert tokenizer.tokenize(["Word7 WORD7 word7 iPhone"]) == [[9, 9, 9, 493]]
    assert "warning" not in stderr


def test_warning_counts_the_words_that_cannot_be_found(tmp_path: Path) -> None:
    """Words that the pattern divides could not be found before either, and are not counted."""
    tokenizer, stderr = export_words(tmp_path, [*LOWER, "<UNK>", "New-York", "iPhone", "nasa", "NASA", "Ünı"])
    assert tokenizer.tokenize(["iPhone NASA Ünı"]) == [[1, 495, 1]]
    (line,) = (line for line in stderr.splitlines() if line.startswith("warning"))
    assert "no text can find then: 2, such as 'iPhone'" in line


@pytest.mark.parametrize(
    ("cased", "want"),
    [(10, "word7"), (11, "<|unknown|>")],  # 2 % of 500 words is 10
)
def test_texts_are_lower_cased_up_to_a_share_of_cased_words(cased: int, want: str) -> None:
    words = [*LOWER, *(f"Name{number}" for number in range(cased))]
    assert found(words, "Word7") == [want]
    assert found(words, "Name7") == (["<|unknown|>"] if want == "word7" else ["Name7"])


def test_scripts_without_case_do_not_hide_the_casing_of_others() -> None:
    words = ["the", "The", *(chr(0x4E00 + number) for number in range(500))]
    assert found(words, "The the 一") == ["The", "the", "一"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*LOWER, "NASA"], "texts are lower-cased: 1 of the 491 words of the file that have case have an upper-case"),
        (["the", "The", "一"], "texts keep their case: 1 of the 2 words of the file that have case have an upper-case"),
    ],
)
def test_the_decision_is_told(words: list[str], said: str, tmp_path: Path) -> None:
    assert f"· {said} letter\n" in export_words(tmp_path, words)[1]


def test_a_file_without_an_upper_case_letter_overrules_none_and_tells_nothing(tmp_path: Path) -> None:
    assert " case" not in export_words(tmp_path, LOWER)[1]


@pytest.mark.parametrize("words", [["日本", "123", "."], ["the", "of"]])
def test_files_without_an_upper_case_letter_lower_case_texts(words: list[str]) -> None:
    assert found(words, words[0].upper()) == [words[0]]
