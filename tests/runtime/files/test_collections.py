"""Collections in BEIR's layout and in plain files, and what is refused of them."""

import json
from pathlib import Path

import pytest

from whiten_runtime.errors import WhitenError
from whiten_runtime.files.collections import read_collection, read_collections

DOCUMENTS = {"d1": ("Wings", "of a plane"), "d2": ("", "a text"), "d3": ("Only a title", "")}
QUERIES = {"q1": "how do wings work", "q2": "unjudged", "q3": "of no use"}
JUDGEMENTS = [("q1", "d1", "2"), ("q1", "d2", "0"), ("q1", "d3", "1"), ("q3", "d2", "-1")]


def texts(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write texts in the form that the name says."""
    if path.suffix == ".jsonl":
        content = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        comma = {".csv": ",", ".tsv": "\t"}[path.suffix]
        content = "".join(comma.join(map(str, row)) + "\n" for row in [list(rows[0]), *(row.values() for row in rows)])
    path.write_text(content, "utf-8")
    return path


def files(folder: Path, kind: str = "jsonl", judged: str = "tsv") -> tuple[Path, Path, Path]:
    """Write queries, documents and judgements in plain files."""
    queries = texts(folder / f"q.{kind}", [{"_id": key, "text": text} for key, text in QUERIES.items()])
    documents = texts(
        folder / f"d.{kind}", [{"_id": key, "title": title, "text": text} for key, (title, text) in DOCUMENTS.items()]
    )
    relevant = folder / f"test.{judged}"
    if judged in ("tsv", "csv"):
        comma = {"csv": ",", "tsv": "\t"}[judged]
        rows = [("query-id", "corpus-id", "score"), *JUDGEMENTS]
        relevant.write_text("".join(comma.join(row) + "\n" for row in rows), "utf-8")
    else:
        comma = "\t" if judged == "trec.tsv" else " "
        lines = [comma.join((query, "0", document, grade)) for query, document, grade in JUDGEMENTS]
        relevant.write_text("\n".join(lines) + "\n", "utf-8")
    return queries, documents, relevant


@pytest.mark.parametrize("kind", ["jsonl", "tsv", "csv"])
@pytest.mark.parametrize("judged", ["tsv", "csv", "qrels", "txt", "trec.tsv"])
def test_plain_files_are_read(tmp_path: Path, kind: str, judged: str) -> None:
    collection = read_collection(*files(tmp_path, kind, judged))
    assert collection.documents == {"d1": "Wings of a plane", "d2": "a text", "d3": "Only a title"}
    assert collection.queries == {"q1": "how do wings work"}
    assert collection.relevant == {"q1": {"d1": 2, "d3": 1}}
    assert (collection.unjudged, collection.empty) == (2, 0)


def test_folders_in_a_folder_are_collections_each(tmp_path: Path) -> None:
    for name in ("b", "a"):
        place = tmp_path / name
        (place / "qrels").mkdir(parents=True)
        queries, documents, relevant = files(place)
        queries.rename(place / "queries.jsonl")
        documents.rename(place / "corpus.jsonl")
        relevant.rename(place / "qrels" / "test.tsv")
    assert [collection.name for collection in read_collections(tmp_path, "test")] == ["a", "b"]
    assert [collection.name for collection in read_collections(tmp_path / "a", "test")] == ["a"]


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("test.tsv", "q9\td1\t1", "line 6 judges query 'q9'"),
        ("test.tsv", "q1\td9\t1", "line 6 judges document 'd9'"),
        ("test.tsv", "q1\td1\t1", "once more"),
        ("test.tsv", "q1\td1\t0.5", "the grade '0.5'"),
        ("test.tsv", "q1\td1", "has 2 columns"),
        ("q.jsonl", '{"_id": "q1", "text": "again"}', "line 4 has the id 'q1'"),
        ("q.jsonl", '{"_id": "q4", "text": " "}', "query 'q4' has no text"),
        ("q.jsonl", '{"_id": "q4"}', "lacks its text"),
        ("q.jsonl", '"a string"', "holds a string"),
        ("q.jsonl", '{"_id": ["q4"], "text": "a"}', "wanted strings"),
        ("d.jsonl", '{"text": "a"}', "lacks its id"),
        ("d.jsonl", "{", "is not JSON"),
    ],
)
def test_what_contradicts_is_refused_with_its_line(tmp_path: Path, name: str, line: str, words: str) -> None:
    queries, documents, relevant = files(tmp_path)
    with (tmp_path / name).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(WhitenError, match=words) as error:
        read_collection(queries, documents, relevant)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.jsonl", "", "holds no text"),
        ("test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0\n", "no document is relevant"),
        ("test.tsv", "a\tb\tc\nq1\td1\t0\n", "has the columns a, b, c"),
        ("test.txt", "q1 d1 1\n", "has 3 fields"),
        ("d.xml", "<a>", "another kind"),
        ("none.jsonl", None, "cannot be read"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    queries, documents, relevant = files(tmp_path)
    path = tmp_path / name
    if content is not None:
        path.write_text(content, "utf-8")
    chosen = (queries, documents, path) if name.startswith("test") else (queries, path, relevant)
    with pytest.raises(WhitenError, match=words) as error:
        read_collection(*chosen)
    assert "\n" not in str(error.value)


def test_documents_without_a_text_are_counted(tmp_path: Path) -> None:
    queries, documents, relevant = files(tmp_path)
    with documents.open("a", encoding="utf-8") as stream:
        stream.write('{"_id": "d4", "title": "", "text": ""}\n')
    assert read_collection(queries, documents, relevant).empty == 1
