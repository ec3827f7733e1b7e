import gzip
import hashlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten import DataError, UsageError
from whiten_runtime.bundle.manifest import CorpusRecord
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus, builtin_sentences

ENGLISH_1 = "df46ee3c4c70be4a8506957b17cf5d10d6c24b87ae44336824df19f1c3e18803"
"""SHA-256 of the sentences of builtin:english-1."""


def test_files_are_read_in_order_counted_and_hashed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo\none\n", "utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three\n"))
    corpus = Corpus((str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")), None, None)
    assert corpus.count() == 4
    assert list(corpus) == ["one", "two", "one", "three"]
    assert [(record.name, record.sentences) for record in corpus.records] == [("a.txt", 3), ("b.txt.gz", 1)]
    assert [record.available for record in corpus.records] == [None, None]
    assert corpus.records[0].sha256 == hashlib.sha256(b"one\ntwo\none\n").hexdigest()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(1, 90))
def test_limit_gives_exactly_that_many_sentences_in_order(sizes: list[int], limit: int) -> None:
    names = [[f"{source}-{index}" for index in range(size)] for source, size in enumerate(sizes)]
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.txt" for index in range(len(sizes))]
        for file, sentences in zip(files, names, strict=True):
            file.write_text("\n".join(sentences), "utf-8")
        found = list(Corpus(tuple(map(str, files)), None, limit))
    every = [sentence for sentences in names for sentence in sentences]
    assert len(found) == min(limit, len(every))
    assert found == [sentence for sentence in every if sentence in set(found)]
    for size, sentences in zip(sizes, names, strict=True):  # each source keeps its share
        share = size * len(found) / max(len(every), 1)
        assert abs(len(set(sentences) & set(found)) - share) <= 1


def test_a_corpus_that_grows_while_it_is_sampled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(map(str, range(10))), "utf-8")
    corpus = Corpus((str(path),), None, 5)
    assert corpus.count() == 5
    path.write_text("\n".join(map(str, range(100))), "utf-8")
    with pytest.raises(DataError, match="changed from 10 to 100 sentences"):
        list(corpus)


def test_the_builtin_corpus_never_changes() -> None:
    corpus = Corpus((BUILTIN_CORPUS,), None, None)
    sentences = list(corpus)
    assert corpus.records == (CorpusRecord(name="builtin:english-1", sha256=ENGLISH_1, sentences=15_600),)
    assert len(set(sentences)) == 15_600
    assert all(sentence == " ".join(sentence.split()) for sentence in sentences)


def test_every_part_of_the_builtin_corpus_holds_all_kinds() -> None:
    found = builtin_sentences()
    shares = Counter(kind for kind, _ in found)
    assert len(shares) == 11
    for start in range(0, len(found), 2600):
        part = Counter(kind for kind, _ in found[start : start + 2600])
        assert all(part[kind] == pytest.approx(count / 6, rel=0.5) for kind, count in shares.items())


@pytest.mark.parametrize(
    ("name", "content", "error", "named"),
    [
        ("a.txt", b"", DataError, "a.txt"),
        ("a.txt", b"\n \n", DataError, "a.txt"),
        ("a.txt", b"fine\n" * 5000 + b"\xff\n", DataError, "line 5001"),
        ("a.csv", b"id,body\n1,x\n", UsageError, "--column"),
    ],
)
def test_count_refuses_malformed_files(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], named: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=named):
        Corpus((str(tmp_path / name),), None, None).count()


@pytest.mark.parametrize("name", ["nowhere.txt", "builtin:nonsense", "-"])
def test_missing_corpus_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="standard input" if name == "-" else name):
        Corpus((name,), None, None).count()


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        ([f"text {n % 30} of words" for n in range(2000)], (30, 1)),
        ([f"event {n} took {n * 7} ms" for n in range(2000)], (100, 1)),
        ([chr(65 + n % 26) * (n % 40 + 1) for n in range(2000)], (100, 100)),
        (["one", "two", "one"], (2, 2)),
    ],
)
def test_different_sentences_are_counted_up_to_a_number(
    lines: list[str], counted: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", "utf-8")
    assert Corpus((str(tmp_path / "a.txt"),), None, None).count_different(100) == counted
