"""Read collections to search: documents, queries, and judgements of which document answers which query."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.records import CorpusRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.folders import files_below
from whiten_runtime.files.records import (
    WrongRowError,
    check_width,
    fields_of,
    kind_of,
    line_text,
    parse_records,
    records_of,
    value_of,
)

_ID, _TEXT = ("_id", "id"), ("text",)
_JUDGEMENT = (("query-id", "query_id", "query"), ("corpus-id", "corpus_id", "document"), ("score", "relevance"))
_TREC_FIELDS = 4
_WANTED_TEXTS = "wanted .jsonl, .tsv or .csv with _id and text, and perhaps title"
_WANTED_JUDGEMENTS = "wanted .tsv or .csv with query-id, corpus-id and score, or TREC's lines QUERY 0 DOCUMENT GRADE"


@dataclass(frozen=True)
class Collection:
    """Documents and the queries that are asked of them.

    Attributes:
        name: name of the folder, or of the file of judgements.
        documents: texts by id, each with its title before it.
        queries: texts by id, of the queries that have a relevant document.
        relevant: grades of relevant documents, 1 or higher, by query and document.
        unjudged: number of queries that are left out, because no document is relevant to them.
        judgements: name of the file of judgements.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]
    unjudged: int
    judgements: str = ""

    @property
    def empty(self) -> int:
        """Return the number of documents without a text."""
        return sum(not text for text in self.documents.values())

    @property
    def record(self) -> CorpusRecord:
        """Return the name, the SHA-256 and the number of queries."""
        relevant = [(query, sorted(own.items())) for query, own in sorted(self.relevant.items())]
        content = sorted(self.documents.items()), sorted(self.queries.items()), relevant
        digest = hashlib.sha256(json.dumps(content).encode())
        return CorpusRecord(name=self.name, sha256=digest.hexdigest(), sentences=len(self.queries))


def has_collections(folder: Path) -> bool:
    """Return whether there is a collection in a folder."""
    try:
        return bool(_corpora(folder))
    except OSError:
        return False


def _corpora(folder: Path) -> list[Path]:
    return sorted(path for path in files_below(folder, (".",)) if path.name == "corpus.jsonl")


def read_collections(folder: Path, split: str | None) -> list[Collection]:
    """Read the collections of a folder in the layout of BEIR (Thakur et al. 2021): itself, or folders in it.

    Each has `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`; without a split, `qrels/dev.tsv` or the only file.

    Raises:
        UsageError: there is no collection, or one without judgements of this split.
        DataError: a file cannot be read, or contradicts another.
    """
    try:
        corpora = _corpora(folder)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be read ({error.strerror}); wanted a folder of collections") from None
    if not corpora:
        raise UsageError(f"'{folder}' has no corpus.jsonl; wanted BEIR's layout: corpus.jsonl, queries.jsonl, qrels/")
    return [_read_folder(corpus.parent, split) for corpus in corpora]


def _read_folder(folder: Path, split: str | None) -> Collection:
    stems = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
    others = ", ".join(stems) or "none"
    if split is None:
        split = stems[0] if len(stems) == 1 else "dev"
        if split not in stems:
            raise UsageError(f"'{folder}/qrels' has no dev.tsv to choose by, and other splits: {others}; add dev.tsv")
    judgements = folder / "qrels" / f"{split}.tsv"
    if not judgements.is_file():
        raise UsageError(f"'{judgements}' is not a file; the splits that have judgements are: {others} (--split)")
    return read_collection(folder / "queries.jsonl", folder / "corpus.jsonl", judgements, folder.resolve().name)


def read_collection(queries: Path, documents: Path, relevant: Path, name: str | None = None) -> Collection:
    """Read a collection from three files.

    A document's title stands before its text, with a blank between them, as in BEIR. A grade of 0 or less means that
    a document is not relevant, as in trec_eval.

    Raises:
        UsageError: a file is of an unknown kind, or there are no judgements.
        DataError: a file cannot be read, an id stands twice, a query is empty, or a judgement names an unknown query or
            document, or has no whole number as its grade.
    """
    texts, questions = _read_texts(documents), _read_texts(queries)
    for query, text in questions.items():
        if not text:
            raise DataError(f"{queries}: query '{query}' has no text; write it, or leave it out")
    grades: dict[str, dict[str, int]] = {}
    for row, query, document, grade in _read_judgements(relevant):
        for what, key, known, file in (
            ("query", query, questions, queries),
            ("document", document, texts, documents),
        ):
            if key not in known:
                raise DataError(f"{relevant}: line {row} judges {what} '{key}', which {file} does not have")
        of_query = grades.setdefault(query, {})
        if of_query.setdefault(document, grade) != grade:
            raise DataError(f"{relevant}: line {row} judges document '{document}' for query '{query}' once more")
    positive = {query: {key: grade for key, grade in own.items() if grade > 0} for query, own in grades.items()}
    positive = {query: own for query, own in positive.items() if own}
    if not positive:
        raise DataError(f"{relevant}: no document is relevant to any query; wanted grades of 1 or higher")
    asked = {query: questions[query] for query in questions if query in positive}
    return Collection(name or relevant.stem, texts, asked, positive, len(questions) - len(asked), relevant.name)


def _read_texts(path: Path) -> dict[str, str]:
    """Return texts by id, each with its title before it."""
    texts: dict[str, str] = {}
    for row, values in _rows(path, (_ID, _TEXT, ("title",)), _WANTED_TEXTS):
        key, text, title = values
        if key is None or text is None:
            raise DataError(f"{path}: line {row} lacks its {'id' if key is None else 'text'}; {_WANTED_TEXTS}")
        if key in texts:
            raise DataError(f"{path}: line {row} has the id '{key}' of an earlier line; give each text its own")
        texts[key] = f"{title or ''} {text}".strip()
    if not texts:
        raise DataError(f"{path}: holds no text; {_WANTED_TEXTS}")
    return texts


def _read_judgements(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Yield the line, the query, the document and the grade of each judgement."""
    for row, values in _rows(path, _JUDGEMENT, _WANTED_JUDGEMENTS):
        query, document, grade = values
        if query is None or document is None or grade is None:
            raise DataError(f"{path}: line {row} lacks a query, a document or a grade; {_WANTED_JUDGEMENTS}")
        try:
            yield row, query, document, int(grade)
        except ValueError:
            raise DataError(f"{path}: line {row} has the grade '{grade}'; wanted a whole number") from None


def _rows(path: Path, names: Sequence[Sequence[str]], wanted: str) -> Iterator[tuple[int, list[str | None]]]:
    """Yield the line of each record and its values by name; the last names may be absent."""
    kind = kind_of(path.name)
    try:
        with path.open("rb") as stream:
            if kind == ("jsonl", False):
                records = records_of(stream, str(path), "jsonl")
                yield from parse_records(
                    records, str(path), lambda row, lines: _of_object(value_of(lines[0], row), names)
                )
                return
            if kind in (("tsv", False), ("csv", False)):
                assert kind is not None
                records = records_of(stream, str(path), kind[0])
                read = _of_fields(names, path, lambda row, lines: fields_of(lines, row, kind[0]), wanted)
            elif names is _JUDGEMENT:
                records = records_of(stream, str(path), "txt")
                read = _of_trec
            else:
                raise UsageError(f"'{path}' is of another kind; {wanted}")
            yield from parse_records(records, str(path), read)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read ({error.strerror}); {wanted}") from None


def _of_object(value: str | dict[str, Any] | None, names: Sequence[Sequence[str]]) -> list[str | None] | None:
    if value is None:
        return None
    if isinstance(value, str):
        raise WrongRowError("holds a string; wanted an object")
    values = [next((value[key] for key in keys if key in value), None) for keys in names]
    for text in values:
        if not (text is None or isinstance(text, str) or type(text) is int):
            raise WrongRowError(f"holds {text!r:.30}; wanted strings")
    return [None if text is None else str(text) for text in values]


def _of_fields(
    names: Sequence[Sequence[str]], path: Path, fields: Callable[[int, list[bytes]], list[str]], wanted: str
) -> Callable[[int, list[bytes]], list[str | None] | None]:
    """Return a function that reads the values of a record; the first record is the header, or one of TREC's."""
    header: list[str] = []

    def read(row: int, lines: list[bytes]) -> list[str | None] | None:
        values = fields(row, lines)
        if not values:
            return None
        if not header:
            if names is _JUDGEMENT and len(values) == _TREC_FIELDS and values[3].lstrip("-").isdigit():
                header.extend(("query", "", "document", "score"))
            else:
                header.extend(values)
                if any(not set(keys) & set(header) for keys in names if keys != ("title",)):
                    raise UsageError(f"'{path}' has the columns {', '.join(header)[:80]}; {wanted}")
                return None
        check_width(values, len(header))
        return [next((values[header.index(key)] for key in keys if key in header), None) for keys in names]

    return read


def _of_trec(row: int, lines: list[bytes]) -> list[str | None] | None:
    fields = line_text(lines[0], row).split()
    if not fields:
        return None
    if len(fields) != _TREC_FIELDS:
        raise WrongRowError(f"has {len(fields)} fields; {_WANTED_JUDGEMENTS}")
    return [fields[0], fields[2], fields[3]]
