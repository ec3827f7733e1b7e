"""Read what vectors are judged by: pairs of sentences with scores, and collections to search."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import CorpusRecord
from whiten_runtime.errors import DataError, UsageError, check_file
from whiten_runtime.files.rows import (
    Kind,
    WrongRowError,
    fields_of,
    number_of,
    parse_records,
    parse_rows,
    records_of,
    type_of,
)


def files_below(folder: Path, hidden: tuple[str, ...]) -> Iterator[Path]:
    """Yield the paths of the files below a directory, in no order.

    Directories whose names begin with one of `hidden` are left out. Links to directories are followed, but not to one
    that they lie in.

    Raises:
        OSError: a directory may not be read.
    """
    left = [(folder, frozenset[tuple[int, int]]())]
    while left:
        top, above = left.pop()
        status = top.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        for path in top.iterdir():
            if not path.is_dir():
                yield path
            elif not path.name.startswith(hidden):
                left.append((path, above | {here}))


COLUMNS = ("sentence1", "sentence2", "score")
_STS_COLUMNS = (5, 6, 4)
_LEAST = 10
_WANTED = (
    f".csv, .tsv or .jsonl with {', '.join(COLUMNS)}, or tab-separated lines as the STS benchmark has them "
    "(score and sentences in columns 5 to 7)"
)


@dataclass(frozen=True)
class Pairs:
    first: tuple[str, ...]  # first sentence of each pair
    second: tuple[str, ...]  # second sentence of each pair
    scores: NDArray[np.float64]  # similarity of each pair as judged by people, [n]
    record: CorpusRecord  # name, SHA-256 and number of pairs of the file


def read_pairs(path: Path) -> Pairs:
    check_file(path, "wanted pairs with scores")
    with path.open("rb") as stream:
        rows = list(_rows(stream, path))
    scores = np.array([score for _, _, score in rows])
    if len(rows) < _LEAST or np.ptp(scores) == 0:
        raise DataError(f"{path}: {len(rows)} pairs that tell nothing; wanted {_LEAST} or more, with different scores")
    digest = hashlib.sha256("".join(f"{a}\t{b}\t{score!r}\n" for a, b, score in rows).encode("utf-8", "surrogatepass"))
    record = CorpusRecord(name=path.name, sha256=digest.hexdigest(), sentences=len(rows))
    return Pairs(tuple(row[0] for row in rows), tuple(row[1] for row in rows), scores, record)


def _rows(stream: BinaryIO, path: Path) -> Iterator[tuple[str, str, float]]:
    first = stream.readline().decode("latin-1").split("\t")
    stream.seek(0)
    headless = len(first) > max(_STS_COLUMNS) and number_of(first[_STS_COLUMNS[2]]) is not None
    if path.suffix == ".jsonl" or not headless:
        kind = cast(Kind, path.suffix[1:] if path.suffix in (".jsonl", ".tsv") else "csv")
        yield from (pair for _, pair in parse_rows(stream, str(path), kind, COLUMNS, _WANTED, _pair))
        return

    def read(row: int, lines: list[bytes]) -> tuple[str, str, float] | None:
        fields = fields_of(lines, row, "tsv")
        return _pair([fields[column] if column < len(fields) else None for column in _STS_COLUMNS]) if fields else None

    yield from (pair for _, pair in parse_records(records_of(stream, str(path), "tsv"), str(path), read))


def _pair(fields: Sequence[object]) -> tuple[str, str, float]:
    first, second, score = fields
    value = number_of(score)
    if not isinstance(first, str) or not isinstance(second, str) or value is None:
        raise WrongRowError(f"holds {str(fields)[:80]} as sentences and score; wanted {_WANTED}")
    return first, second, value


LAYOUT = "BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv"

_CORPUS, _QUERIES = "corpus.jsonl", "queries.jsonl"
_TEXT = ("_id", "text", "title")
_JUDGEMENT = ("query-id", "corpus-id", "score")
_GRADE = re.compile(r"\s*[+-]?[0-9]{1,9}\s*")
"""A grade that fits into 32 bits, as programs that measure rankings hold them."""


@dataclass(frozen=True)
class Collection:
    """Documents and the queries that are asked of them.

    Attributes:
        name: name of the folder; its path below the data where two have the same name.
        documents: texts by id, each with its title before it.
        queries: texts by id, of the queries that have a relevant document.
        relevant: grades of relevant documents, 1 or higher, by query and document. A document that the collection does
            not have is relevant, too: no search finds it.
        unjudged: number of queries that are left out, because no document is relevant to them.
        judgements: name of the file of judgements.
        unknown_queries: ids of queries that are judged, but that the collection does not have. They are left out.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]
    unjudged: int
    judgements: str = ""
    unknown_queries: tuple[str, ...] = ()

    @cached_property
    def ids(self) -> list[str]:
        """Return the ids of the documents in the order in which they are searched: of equals, the first comes first."""
        return sorted(self.documents)

    @cached_property
    def own_rows(self) -> tuple[int | None, ...]:
        """Return the place in `ids` of the document that each query itself is; None for a query that is no document.

        It has the query's id and ends with its text, as in ArguAna and Quora. One that only has the same number, as in
        Cranfield, is another text.
        """
        rows = {key: row for row, key in enumerate(self.ids)}
        return tuple(
            rows[query] if self.documents.get(query, "").endswith(text) else None
            for query, text in self.queries.items()
        )

    @property
    def empty(self) -> int:
        """Return the number of documents without a text."""
        return sum(not text for text in self.documents.values())

    @property
    def warnings(self) -> list[str]:
        absent = [key for own in self.relevant.values() for key in own if key not in self.documents]
        lines = []
        if self.empty:
            lines.append(f"{self.empty} documents have no text; they are searched as such")
        if absent:
            lines.append(
                f"{self.judgements}: judgements of documents that {_CORPUS} does not have: {len(absent)}, such as "
                f"'{absent[0]}'; they count as relevant and are never found"
            )
        if self.unknown_queries:
            lines.append(
                f"{self.judgements}: judged queries that {_QUERIES} does not have: {len(self.unknown_queries)}, such "
                f"as '{self.unknown_queries[0]}'; they are left out"
            )
        return [f"{self.name}: {line}" for line in lines]

    @property
    def record(self) -> CorpusRecord:
        """Return the name, the SHA-256 and the number of queries."""
        relevant = [(query, sorted(own.items())) for query, own in sorted(self.relevant.items())]
        content = sorted(self.documents.items()), sorted(self.queries.items()), relevant
        digest = hashlib.sha256(json.dumps(content).encode())
        return CorpusRecord(name=self.name, sha256=digest.hexdigest(), sentences=len(self.queries))


def has_collections(folder: Path) -> bool:
    try:
        return bool(_corpora(folder))
    except OSError:
        return False


def _corpora(folder: Path) -> list[Path]:
    return sorted(path for path in files_below(folder, (".",)) if path.name == _CORPUS)


def read_collections(folder: Path, split: str | None) -> list[Collection]:
    """Read the collections of a folder in the layout of BEIR (Thakur et al. 2021): itself, or folders in it.

    Each has `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`; without a split, `qrels/dev.tsv` or the only file.

    Raises:
        UsageError: there is no collection, or one without judgements of this split.
        DataError: a file cannot be read, an id stands twice, a query is empty, a judgement has no whole number as its
            grade, no document is relevant to any query, or none of the judged queries or documents is there.
    """
    try:
        corpora = _corpora(folder)
        others = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be read ({error.strerror}); wanted a folder of collections") from None
    if not corpora:
        raise UsageError(f"'{folder}' has no {_CORPUS}, but {', '.join(others)[:80] or 'nothing'}; wanted {LAYOUT}")
    collections = [_read_collection(corpus.parent, split) for corpus in corpora]
    if len({collection.name for collection in collections}) == len(collections):
        return collections
    paths = [corpus.parent.relative_to(folder).as_posix() for corpus in corpora]
    return [replace(collection, name=path) for collection, path in zip(collections, paths, strict=True)]


def _read_collection(folder: Path, split: str | None) -> Collection:
    """Read a collection.

    A document's title stands before its text, with a blank between them, as in BEIR. A grade of 0 or less means that
    a document is not relevant, as in trec_eval.
    """
    relevant = _judgements(folder, split)
    documents, queries = _read_texts(folder / _CORPUS), _read_texts(folder / _QUERIES)
    for query, text in queries.items():
        if not text:
            raise DataError(f"{folder / _QUERIES}: query '{query}' has no text; write it, or leave it out")
    grades: dict[str, dict[str, int]] = {}
    with _opened(relevant) as stream:
        table = parse_rows(stream, str(relevant), "tsv", _JUDGEMENT, ", ".join(_JUDGEMENT), _read_judgement)
        for row, (query, document, grade) in table:
            of_query = grades.setdefault(query, {})
            if of_query.setdefault(document, grade) != grade:
                raise DataError(f"{relevant}: line {row} judges document '{document}' for query '{query}' once more")
    positive = {query: {key: grade for key, grade in own.items() if grade > 0} for query, own in grades.items()}
    positive = {query: own for query, own in positive.items() if own}
    asked = {query: queries[query] for query in queries if query in positive}
    if not positive:
        raise DataError(f"{relevant}: no document is relevant to any query; wanted grades of 1 or higher")
    if not asked:
        judged, there = next(iter(positive)), next(iter(queries))
        raise DataError(f"{relevant}: {_unknown('query with a relevant document', judged, _QUERIES, there)}")
    wanted = [key for query in asked for key in positive[query]]
    if documents.keys().isdisjoint(wanted):
        there = next(iter(documents))
        raise DataError(f"{relevant}: {_unknown('relevant document of a known query', wanted[0], _CORPUS, there)}")
    return Collection(
        folder.resolve().name,
        documents,
        asked,
        {query: positive[query] for query in asked},
        len(queries) - len(asked),
        relevant.name,
        tuple(query for query in grades if query not in queries),
    )


def _unknown(what: str, judged: str, name: str, there: str) -> str:
    """Say that a file has nothing that is judged, with an id of both sides: quotes and zeros are often the reason."""
    return f"no {what} is in {name}: this has ids such as {there}, not {judged}; give both the same ids"


def _judgements(folder: Path, split: str | None) -> Path:
    """Return the file of judgements of a split; without one, `dev.tsv` or the only file."""
    stems = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
    others = ", ".join(stems) or "none"
    if split is None:
        split = stems[0] if len(stems) == 1 else "dev"
        if split not in stems:
            raise UsageError(f"'{folder}/qrels' has no dev.tsv to choose by, and other splits: {others}; add dev.tsv")
    judgements = folder / "qrels" / f"{split}.tsv"
    check_file(judgements, f"the splits that have judgements are: {others} (--split)")
    return judgements


def _read_texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    with _opened(path) as stream:
        rows = parse_rows(stream, str(path), "jsonl", _TEXT, "_id and text, and perhaps title", _read_text)
        for row, (key, text, title) in rows:
            if key in texts:
                raise DataError(f"{path}: line {row} has the id '{key}' of an earlier line; give each text its own")
            texts[key] = f"{title} {text}".strip()
    if not texts:
        raise DataError(f"{path}: holds no text; wanted lines with _id and text, and perhaps title")
    return texts


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read ({error.strerror}); wanted {LAYOUT}") from None


def _read_text(fields: list[object]) -> tuple[str, ...]:
    for name, field in zip(_TEXT, fields, strict=True):
        if field is None and name != "title":
            raise WrongRowError(f"lacks '{name}'; wanted _id and text, and perhaps title")
        if not (field is None or isinstance(field, str) or type(field) is int):
            raise WrongRowError(f"holds {type_of(field)} at '{name}'; wanted a string")
    return tuple("" if field is None else str(field) for field in fields)


def _read_judgement(fields: list[str]) -> tuple[str, str, int]:
    query, document, grade = fields
    if not _GRADE.fullmatch(grade):
        raise WrongRowError(f"has the grade '{grade[:80]}'; wanted a whole number of up to nine digits")
    return query, document, int(grade)
