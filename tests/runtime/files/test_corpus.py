import gzip
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whiten_runtime import DataError, UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus, _Remembered


def test_files_are_read_in_order_counted_and_hashed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo\none\n", "utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three\n"))
    corpus = Corpus((str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")), None, None)
    assert corpus.count() == 4
    assert list(corpus) == ["one", "two", "one", "three"]
    assert [(record.name, record.sentences) for record in corpus.records] == [("a.txt", 3), ("b.txt.gz", 1)]
    assert corpus.records[0].sha256 == hashlib.sha256(b"one\ntwo\none\n").hexdigest()


def test_limit_keeps_the_first_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", "utf-8")
    (tmp_path / "b.txt").write_text("three\nfour\n", "utf-8")
    (tmp_path / "c.txt").write_text("five\n", "utf-8")
    corpus = Corpus(tuple(str(tmp_path / f"{name}.txt") for name in "abc"), None, 3)
    assert list(corpus) == ["one", "two", "three"]
    assert [record.sentences for record in corpus.records] == [2, 1]


def test_the_builtin_corpus_is_large_distinct_and_repeatable() -> None:
    corpus = Corpus((BUILTIN_CORPUS,), None, None)
    first = list(corpus)
    records = corpus.records
    assert len(first) == len(set(first)) > 10_000
    assert first == list(corpus)
    assert records == corpus.records
    assert records[0].name.startswith(BUILTIN_CORPUS)
    assert all(sentence == " ".join(sentence.split()) for sentence in first)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.txt", b"", DataError, "holds no sentence"),
        ("a.txt", b"\n \n", DataError, "holds no sentence"),
        ("a.txt", b"\xff\xfe", DataError, "not UTF-8"),
        ("a.txt", b"fine\n" * 5000 + b"\xff\n", DataError, "line 5001 is not UTF-8"),
        ("a.csv", b"id,body\n1,x\n", UsageError, "choose one with --column"),
    ],
)
def test_count_refuses_malformed_files(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        Corpus((str(tmp_path / name),), None, None).count()


def test_missing_corpus_is_refused() -> None:
    for source in ("nowhere.txt", "builtin:nonsense"):
        with pytest.raises(UsageError):
            Corpus((source,), None, None).count()
    with pytest.raises(UsageError, match="standard input"):
        Corpus(("-",), None, None).count()


def test_an_interrupted_read_of_the_built_in_corpus_is_not_its_end() -> None:
    failures = iter([True, False])

    def read() -> Iterator[str]:
        yield from ("one", "two")
        if next(failures):
            raise KeyboardInterrupt
        yield "three"

    remembered = _Remembered(read)
    assert next(iter(remembered)) == "one"
    with pytest.raises(KeyboardInterrupt):
        list(remembered)
    assert list(remembered) == ["one", "two", "three"]
    assert list(remembered) == ["one", "two", "three"]


def test_threads_read_the_built_in_corpus_together() -> None:
    remembered = _Remembered(lambda: (str(number) for number in range(5000)))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: list(remembered), range(4)))
    assert all(sentences == [str(number) for number in range(5000)] for sentences in found)
