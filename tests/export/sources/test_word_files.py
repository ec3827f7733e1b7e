"""Test files of word vectors: header, byte order mark, words with blanks, damaged lines, archives."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from support.cli import refused
from whiten import DataError
from whiten_export.sources.words import read_words

BODY = "cat 1 2 3 4\ndog 4 3 2 1\nmat 0 1 0 1\n"
VECTORS = [[1, 2, 3, 4], [4, 3, 2, 1], [0, 1, 0, 1]]


def test_read_plain_and_compressed_files(tmp_path: Path) -> None:
    content = "4 2\nthe 1 2\n. . 3 4\nthe 9 9\nof 5 6\n"
    (tmp_path / "a.vec").write_text(content)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(content)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/a.txt", content)
    with zipfile.ZipFile(tmp_path / "of-macos.zip", "w") as archive:
        archive.writestr("folder/a.txt", content)
        archive.writestr("__MACOSX/folder/._a.txt", b"\0\5\x16\7")
    for name in ("a.vec", "a.txt.gz", "a.zip", "of-macos.zip"):
        read = read_words(tmp_path / name)
        assert read.words == ("the", ". .", "of")
        np.testing.assert_array_equal(read.vectors, [[1, 2], [3, 4], [5, 6]])


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff3 4\n" + BODY,
        "\ufeff" + BODY,
        ("\ufeff3 4\n" + BODY).replace("\n", "\r\n"),
        "3 4  \r\n" + BODY,
        ("3 4\n" + BODY).replace("\n", " \n"),
        BODY.replace("0 1 0 1", "-0 +1.0 0e-5 10E-1"),
    ],
)
def test_marks_line_ends_and_blanks_are_no_part_of_words(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.vec").write_bytes(content.encode())
    read = read_words(tmp_path / "a.vec")
    assert read.words == ("cat", "dog", "mat")
    np.testing.assert_array_equal(read.vectors, VECTORS)


@pytest.mark.parametrize("word", ["in 1999 1 1", "1" * 5000, "3 4", "\u00a0"])
@pytest.mark.parametrize("header", ["4 4\n", ""])
def test_words_may_contain_blanks_and_numbers(tmp_path: Path, word: str, header: str) -> None:
    (tmp_path / "a.vec").write_text(f"{header}{word} 5 6 7 8\n{BODY}", "utf-8")
    read = read_words(tmp_path / "a.vec")
    assert read.words == (word, "cat", "dog", "mat")
    np.testing.assert_array_equal(read.vectors, [[5, 6, 7, 8], *VECTORS])


@pytest.mark.parametrize("separator", ["\t", "first", " "])
def test_tabs_separate_as_blanks_do(separator: str, tmp_path: Path) -> None:
    """word TAB 1 TAB 2; word TAB 1 blank 2; with and without a header."""
    lines = BODY.splitlines()
    if separator == "\t":
        lines = [line.replace(" ", "\t") for line in lines]
    elif separator != " ":
        lines = [line.replace(" ", "\t", 1) for line in lines]
    for header in ("", "3 4\n", "3\t4\n"):
        (tmp_path / "a.txt").write_text(header + "\n".join(lines) + "\t\n")
        read = read_words(tmp_path / "a.txt")
        assert read.words == tuple(line.split()[0] for line in BODY.splitlines())
        np.testing.assert_allclose(read.vectors, VECTORS, rtol=1e-6)


MANY = "".join(f"word{number} 1 2 3 4\n" for number in range(300))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1 2\nof 3 4\nof 3\n", "line 3"),
        ("the 1 2\nof 3\n", "line 2"),
        ("the\n", "line 1"),
        ("the\t\t1 2\n", "line 1"),
        *((f"the 2 {number}\n", "line 1") for number in ("x", "nan", "1_0", "inf", "0x1", "1\x0b", "1,5", "\xa01")),
        ("3 4\n", "no word"),
        ("caf\xe9 1 2\n", "line 1 is not UTF-8"),
        ("cat 1\n" + MANY, "line 1"),
        ("1 2 3 4\n" + MANY, "line 1"),
        (MANY + "cat 1 2\n", "line 301"),
        ("3 5\n" + BODY, "line 2"),
        ("3 0\n" + BODY, "line 2"),
        ("3 4\n3 4\n" + BODY, "line 2"),
        ("2 4\n" + BODY, "line 4"),
        ("0 4\n" + BODY, "line 2"),
        ("4 4\n" + BODY, "4 words"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content.encode("latin-1"))
    assert message in refused("export", tmp_path / "a.txt", code=1)


def test_damaged_and_ambiguous_archives_are_refused(tmp_path: Path) -> None:
    for name in ("a.zip", "a.gz"):
        (tmp_path / name).write_bytes(b"the 1 2\n")
        with pytest.raises(DataError, match="archive"):
            read_words(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.txt", "the 1\n")
        archive.writestr("b.txt", "the 1\n")
    with pytest.raises(DataError, match="holds 2 text files"):
        read_words(tmp_path / "two.zip")


def test_a_line_without_an_end_is_refused_before_it_takes_all_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.txt.gz", "wb", 1) as file:
        file.writelines([b"the 1 2\n", *[b"1 " * 500_000] * 9])
    with pytest.raises(DataError, match="line 2"):
        read_words(tmp_path / "a.txt.gz")
