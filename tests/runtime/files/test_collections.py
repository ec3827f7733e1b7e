"""Collections in BEIR's layout, and what is refused of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from whiten_runtime.errors import WhitenError
from whiten_runtime.files.judged import Collection, read_collections

DOCUMENTS = {"d1": ("Wings", "of a plane"), "d2": ("", "a text"), "d3": ("Only a title", "")}
QUERIES = {"q1": "how do wings work", "q2": "unjudged", "q3": "of no use"}
JUDGEMENTS = [("q1", "d1", "2"), ("q1", "d2", "0"), ("q1", "d3", "1"), ("q3", "d2", "-1")]


def write(folder: Path, split: str = "test") -> Path:
    """Write a collection."""
    (folder / "qrels").mkdir(parents=True)
    queries = [{"_id": key, "text": text} for key, text in QUERIES.items()]
    corpus = [{"_id": key, "title": title, "text": text} for key, (title, text) in DOCUMENTS.items()]
    for name, rows in (("queries", queries), ("corpus", corpus)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    lines = ["\t".join(row) + "\n" for row in [("query-id", "corpus-id", "score"), *JUDGEMENTS]]
    (folder / "qrels" / f"{split}.tsv").write_text("".join(lines), "utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "one")


def read(folder: Path) -> Collection:
    (collection,) = read_collections(folder, "test")
    return collection


def test_titles_stand_before_texts_and_only_relevant_documents_count(folder: Path) -> None:
    collection = read(folder)
    assert collection.documents == {"d1": "Wings of a plane", "d2": "a text", "d3": "Only a title"}
    assert collection.queries == {"q1": "how do wings work"}
    assert collection.relevant == {"q1": {"d1": 2, "d3": 1}}
    assert (collection.name, collection.judgements) == ("one", "test.tsv")
    assert (collection.unjudged, collection.empty, collection.own_rows) == (2, 0, (None,))


def test_folders_in_a_folder_are_collections_each(tmp_path: Path) -> None:
    write(tmp_path / "b")
    write(tmp_path / "a")
    assert [collection.name for collection in read_collections(tmp_path, "test")] == ["a", "b"]
    assert [collection.name for collection in read_collections(tmp_path / "a", None)] == ["a"]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("en/scifact", "fr/scifact"), ["en/scifact", "fr/scifact"]),
        (("en/nf", "en/scifact", "fr/scifact"), ["en/nf", "en/scifact", "fr/scifact"]),
        (("one/scifact", "scifact"), ["one/scifact", "scifact"]),
        ((".", "data"), [".", "data"]),
        (("en/a", "fr/b"), ["a", "b"]),
    ],
)
def test_collections_of_the_same_name_are_named_by_their_paths(
    tmp_path: Path, folders: tuple[str, ...], names: list[str]
) -> None:
    for folder in folders:
        write(tmp_path / "data" / folder)
    assert [collection.name for collection in read_collections(tmp_path / "data", "test")] == names


def test_links_to_one_collection_are_collections_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).symlink_to(write(tmp_path / name / "real"))
    assert [collection.name for collection in read_collections(tmp_path / "data", "test")] == ["a", "b"]


def test_a_query_that_is_a_document_is_known_by_id_and_text(folder: Path) -> None:
    def append(name: str, *rows: dict[str, str]) -> None:
        with (folder / name).open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)

    append("queries.jsonl", {"_id": "d1", "text": "of a plane"}, {"_id": "d2", "text": "another text"})
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.write("d1\td3\t1\nd2\td3\t1\n")
    collection = read(folder)
    assert collection.ids == ["d1", "d2", "d3"]
    assert dict(zip(collection.queries, collection.own_rows, strict=True)) == {"q1": None, "d1": 0, "d2": None}


@pytest.mark.parametrize(
    ("lines", "relevant", "warnings"),
    [
        (
            "q1\td9\t1\nq1\td8\t2\n",
            {"d1": 2, "d3": 1, "d9": 1, "d8": 2},
            ["judgements of documents that corpus.jsonl does not have: 2, such as 'd9'"],
        ),
        ("q1\td9\t0\n", {"d1": 2, "d3": 1}, []),
        (
            "q9\td1\t1\nq9\td2\t1\nq8\td2\t0\n",
            {"d1": 2, "d3": 1},
            ["judged queries that queries.jsonl does not have: 2, such as 'q9'"],
        ),
        ("q9\td9\t1\n", {"d1": 2, "d3": 1}, ["judged queries that queries.jsonl does not have: 1"]),
        (
            "q1\td9\t1\nq9\td1\t1\n",
            {"d1": 2, "d3": 1, "d9": 1},
            ["judgements of documents that corpus.jsonl does not have: 1", "judged queries that"],
        ),
    ],
)
def test_judgements_of_unknown_ids_are_counted_in_a_warning(
    folder: Path, lines: str, relevant: dict[str, int], warnings: list[str]
) -> None:
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.write(lines)
    collection = read(folder)
    assert collection.relevant == {"q1": relevant}
    assert collection.queries == {"q1": QUERIES["q1"]}
    assert len(collection.warnings) == len(warnings)
    for line, words in zip(collection.warnings, warnings, strict=True):
        assert line.startswith(f"one: test.tsv: {words}")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("q9\td1\t1\n", "no query with a relevant document is in queries.jsonl: this has ids such as q1, not q9;"),
        (
            '"q1"\t"d1"\t1\n',
            'no query with a relevant document is in queries.jsonl: this has ids such as q1, not "q1";',
        ),
        (
            "q1\td1\t0\nq9\td1\t1\n",
            "no query with a relevant document is in queries.jsonl: this has ids such as q1, not q9;",
        ),
        (
            "q1\t1\t1\nq2\t2\t1\n",
            "no relevant document of a known query is in corpus.jsonl: this has ids such as d1, not 1;",
        ),
        (
            "q1\t1\t1\nq9\td1\t1\n",
            "no relevant document of a known query is in corpus.jsonl: this has ids such as d1, not 1;",
        ),
    ],
)
def test_judgements_of_other_ids_alone_are_refused(folder: Path, lines: str, words: str) -> None:
    """Quotes, and zeros that a spreadsheet takes away, leave every score 0."""
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    with pytest.raises(WhitenError, match=re.escape(words)):
        read(folder)


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("qrels/test.tsv", "q1\td1\t1", "once more"),
        *(
            ("qrels/test.tsv", f"q1\td1\t{grade}", f"line 6 has the grade '{grade}'; wanted a whole number")
            for grade in ("0.5", "1_0", "10000000000", "١")
        ),
        ("qrels/test.tsv", "q1\td1", "has 2 columns"),
        ("queries.jsonl", '{"_id": "q1", "text": "again"}', "line 4 has the id 'q1'"),
        ("queries.jsonl", '{"_id": "q4", "text": " "}', "query 'q4' has no text"),
        ("queries.jsonl", '{"_id": "q4"}', "lacks 'text'; wanted _id and text"),
        ("queries.jsonl", '"a string"', "holds a string"),
        ("queries.jsonl", '{"_id": ["q4"], "text": "a"}', "holds a list at '_id'; wanted a string"),
        ("corpus.jsonl", '{"id": "d4", "text": "a"}', "lacks '_id'"),
        ("corpus.jsonl", '{"_id": "d4", "_id": "d5", "text": "a"}', "holds two values at '_id'; wanted a string"),
        ("corpus.jsonl", "{", "is not JSON"),
    ],
)
def test_what_contradicts_is_refused_with_its_line(folder: Path, name: str, line: str, words: str) -> None:
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(WhitenError, match=words) as error:
        read(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def filled(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content, "utf-8") and None


def moved(folder: Path) -> None:
    (folder / "corpus.jsonl").rename(folder / "documents.jsonl")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (filled("corpus.jsonl", ""), "holds no text"),
        (filled("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n"), "no document is relevant"),
        (
            filled("qrels/test.tsv", "query-id\tcorpus-id\tscore\tscore\nq1\td1\t1\t0\n"),
            "has the column 'score' twice",
        ),
        (filled("qrels/test.tsv", "q1\t0\td1\t1\n"), "has 'q1', '0', 'd1', '1' as header; wanted query-id, corpus-id"),
        (without("queries.jsonl"), "queries.jsonl' cannot be read .*; wanted BEIR's layout"),
        (without("qrels/test.tsv"), "the splits that have judgements are: none"),
        (moved, "has no corpus.jsonl, but documents.jsonl, qrels, queries.jsonl; wanted BEIR's layout: corpus.jsonl"),
    ],
)
def test_other_files_are_refused_by_name(folder: Path, change: Callable[[Path], None], words: str) -> None:
    change(folder)
    with pytest.raises(WhitenError, match=words) as error:
        read(folder)
    assert "\n" not in str(error.value)


def test_documents_without_a_text_are_counted(folder: Path) -> None:
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": "d4", "title": null, "text": ""}\n')
    assert read(folder).empty == 1
