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
        "3  4\n" + BODY,
        ("3 4\n" + BODY).replace("\n", " \n"),
        BODY.rstrip("\n"),
        BODY.replace("0 1 0 1", "-0 +1.0 0e-5 10E-1"),
    ],
)
def test_marks_line_ends_and_blanks_are_no_part_of_words(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.vec").write_bytes(content.encode())
    read = read_words(tmp_path / "a.vec")
    assert read.words == ("cat", "dog", "mat")
    np.testing.assert_array_equal(read.vectors, VECTORS)


@pytest.mark.parametrize("word", ["R$ 0,00", "1999", "in 1999 1 1", "1" * 5000, "3 4", "no\u00a0break", "\u00a0"])
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
        ("the 1 2\nof 3 x\n", "line 2 is not a word with 2 numbers"),
        ("the 1 2\nof 3 4\nof 3\n", "line 3 is not a word with 2 numbers"),
        ("the 1 2\nof 3\n", "the number of values is 2 in line 1 and 1 in line 2; wanted as many in each"),
        ("the 1 nan\n", "line 1 is not a word"),
        ("the\n", "line 1 is not a word"),
        ("the\t1 x\n", "line 1 is not a word"),
        ("the\t\t1 2\n", "line 1 is not a word"),
        *((f"the 2 {number}\n", "line 1 is not a word with 2 numbers") for number in ("1_0", "inf", "0x1", "1\x0b")),
        ("the 2,5 1,5\n", "line 1 is not a word with 2 numbers"),
        ("", "holds no word"),
        ("3 4\n", "holds no word"),
        ("caf\xe9 1 2\n", "line 1 is not UTF-8"),
        ("\xff\xfet\0h\0e\0 \x001\0\n\0", "line 1 is not UTF-8"),
        ("cat 1\n" + MANY, "line 1 is not a word with 4 numbers"),
        ("cat 1 2 3 x\n" + MANY, "line 1 is not a word with 4 numbers"),
        ("1 2 3 4\n" + MANY, "line 1 is not a word with 4 numbers"),
        (MANY + "cat 1 2\n", "line 301 is not a word with 4 numbers"),
        ("cat 1\ndog 4 3 2 1\n", "the number of values is 1 in line 1 and 4 in line 2"),
        ("3 5\n" + BODY, "line 2 is not a word with 5 numbers, as line 1 says"),
        ("3 0\n" + BODY, "line 2 is not a word with 0 numbers, as line 1 says"),
        ("3 4\n3 4\n" + BODY, "line 2 is not a word with 4 numbers, as line 1 says"),
        ("2 4\n" + BODY, "line 4 is one too many: line 1 says 2 words"),
        ("0 4\n" + BODY, "line 2 is one too many: line 1 says 0 words"),
        ("4 4\n" + BODY, "ends with line 4, but line 1 says 4 words"),
        ("400 4\n" + MANY, "ends with line 301, but line 1 says 400 words"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        read_words(tmp_path / "a.txt")
    assert message in refused("export", tmp_path / "a.txt", code=1)


@pytest.mark.parametrize("number", ["４", "٣", "−1", "1\u2003", "\xa01"])
def test_numbers_are_ascii_digits(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.vec").write_text(f"the 2 1\nof 2 {number}\n", "utf-8")
    with pytest.raises(DataError, match="line 2 is not a word with 2 numbers"):
        read_words(tmp_path / "a.vec")


def test_damaged_and_ambiguous_archives_are_refused(tmp_path: Path) -> None:
    for name in ("a.zip", "a.gz"):
        (tmp_path / name).write_bytes(b"the 1 2\n")
        with pytest.raises(DataError, match="not a complete archive"):
            read_words(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.txt", "the 1\n")
        archive.writestr("b.txt", "the 1\n")
    with pytest.raises(DataError, match="holds 2 text files"):
        read_words(tmp_path / "two.zip")


def test_a_line_without_an_end_is_refused_before_it_takes_all_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.txt.gz", "wb", 1) as file:
        file.writelines([b"the 1 2\n", *[b"1 " * 500_000] * 9])
    with pytest.raises(DataError, match="line 2 is longer than 1 MiB"):
        read_words(tmp_path / "a.txt.gz")
