"""Collections in BEIR's layout, and what is refused of them."""

import json
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
    assert [own.name for own in read_collections(folder, None)] == ["one"]
    assert collection.documents == {"d1": "Wings of a plane", "d2": "a text", "d3": "Only a title"}
    assert collection.queries == {"q1": "how do wings work"}
    assert collection.relevant == {"q1": {"d1": 2, "d3": 1}}
    assert (collection.name, collection.judgements) == ("one", "test.tsv")
    assert (collection.unjudged, collection.empty, collection.own_rows) == (2, 0, (None,))


@pytest.mark.parametrize(
    ("folders", "names"),
    [
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
    ("lines", "more", "warnings"),
    [
        ("q1\td9\t1\nq1\td8\t2\n", {"d9": 1, "d8": 2}, ["2, such as 'd9'"]),
        ("q1\td9\t0\n", {}, []),
        ("q9\td1\t1\nq9\td2\t1\nq8\td2\t0\n", {}, ["2, such as 'q9'"]),
        ("q1\td9\t1\nq9\td1\t1\n", {"d9": 1}, ["1, such as 'd9'", "1, such as 'q9'"]),
    ],
)
def test_judgements_of_unknown_ids_are_counted_in_a_warning(
    folder: Path, lines: str, more: dict[str, int], warnings: list[str]
) -> None:
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.write(lines)
    collection = read(folder)
    assert collection.relevant == {"q1": {"d1": 2, "d3": 1} | more}
    assert collection.queries == {"q1": QUERIES["q1"]}
    assert len(collection.warnings) == len(warnings)
    assert all(words in line for line, words in zip(collection.warnings, warnings, strict=True))


@pytest.mark.parametrize(
    ("lines", "ids"),
    [
        ("q9\td1\t1\n", "q1, not q9"),
        ('"q1"\t"d1"\t1\n', 'q1, not "q1"'),
        ("q1\td1\t0\nq9\td1\t1\n", "q1, not q9"),
        ("q1\t1\t1\nq9\td1\t1\n", "d1, not 1"),
    ],
)
def test_judgements_of_other_ids_alone_are_refused(folder: Path, lines: str, ids: str) -> None:
    """Quotes, and zeros that a spreadsheet takes away, leave every score 0."""
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    with pytest.raises(WhitenError, match=ids):
        read(folder)


@pytest.mark.parametrize(
    ("name", "line", "named"),
    [
        ("qrels/test.tsv", "q1\td1\t1", "line 6"),
        *(("qrels/test.tsv", f"q1\td1\t{grade}", f"'{grade}'") for grade in ("0.5", "1_0", "10000000000", "١")),
        ("qrels/test.tsv", "q1\td1", "line 6"),
        ("queries.jsonl", '{"_id": "q1", "text": "again"}', "'q1'"),
        ("queries.jsonl", '{"_id": "q4", "text": " "}', "'q4'"),
        ("queries.jsonl", '{"_id": "q4"}', "'text'"),
        ("queries.jsonl", '"a string"', "line 4"),
        ("queries.jsonl", '{"_id": ["q4"], "text": "a"}', "'_id'"),
        ("corpus.jsonl", '{"id": "d4", "text": "a"}', "'_id'"),
        ("corpus.jsonl", '{"_id": "d4", "_id": "d5", "text": "a"}', "'_id'"),
        ("corpus.jsonl", "{", "line 4"),
    ],
)
def test_what_contradicts_is_refused_with_its_line(folder: Path, name: str, line: str, named: str) -> None:
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(WhitenError, match=named) as error:
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
    ("change", "named"),
    [
        (filled("corpus.jsonl", ""), "corpus.jsonl"),
        (filled("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n"), "test.tsv"),
        (filled("qrels/test.tsv", "query-id\tcorpus-id\tscore\tscore\nq1\td1\t1\t0\n"), "'score'"),
        (filled("qrels/test.tsv", "q1\t0\td1\t1\n"), "'q1', '0', 'd1', '1'"),
        (without("queries.jsonl"), "queries.jsonl"),
        (without("qrels/test.tsv"), "none"),
        (moved, "documents.jsonl"),
    ],
)
def test_other_files_are_refused_by_name(folder: Path, change: Callable[[Path], None], named: str) -> None:
    change(folder)
    with pytest.raises(WhitenError, match=named) as error:
        read(folder)
    assert "\n" not in str(error.value)


def test_documents_without_a_text_are_counted(folder: Path) -> None:
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": "d4", "title": null, "text": ""}\n')
    assert read(folder).empty == 1
