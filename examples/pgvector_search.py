# /// script
# dependencies = ["whiten", "psycopg[binary]>=3.2"]
# ///
"""Store sentences in PostgreSQL as vector, halfvec, bit and codes, and search them.

Needs pgvector 0.7 or newer, a bundle with a whitening (for codes), and PostgreSQL's own variables (PGHOST, PGUSER ...).

python examples/pgvector_search.py bundles/minilm-l0-l1 --texts FILE "a query"
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import psycopg

from whiten import Coder, Corpus, Encoder, WhitenError

COLUMNS = {
    "vector": ("vector({})", "vector_cosine_ops", "<=>"),
    "halfvec": ("halfvec({})", "halfvec_cosine_ops", "<=>"),
    "bit": ("bit({})", "bit_hamming_ops", "<~>"),
}
"""Type of a column, operators of its index, and the operator of a search."""

CANDIDATES = 100
"""Rows that the index of bits gives, to be ordered by their codes."""

Rows = list[tuple[int, float]]
"""Numbers of texts and their distances, the nearest first."""


def digits(vector: np.ndarray) -> str:
    """Return the signs of a vector, as PostgreSQL writes and reads bits: 1 for a positive number, else 0."""
    return "".join("01"[positive] for positive in (vector > 0).tolist())


def store(db: psycopg.Connection, vectors: np.ndarray, codes: np.ndarray) -> None:
    """Fill a temporary table with COPY, the fastest way in, and index it.

    A table of yours that has its name is hidden until the connection is closed, and stays as it is.
    """
    db.execute("CREATE EXTENSION IF NOT EXISTS vector")
    kinds = ", ".join(f'"{name}" {kind.format(vectors.shape[1])}' for name, (kind, _, _) in COLUMNS.items())
    db.execute(f"CREATE TEMPORARY TABLE sentences (id integer PRIMARY KEY, {kinds}, codes bytea)")
    with db.cursor().copy("COPY sentences FROM STDIN") as copy:
        for row, (vector, code) in enumerate(zip(vectors, codes, strict=True)):
            numbers = str(vector.tolist())
            copy.write_row((row, numbers, numbers, digits(vector), code.tobytes()))
    for name, (_, operators, _) in COLUMNS.items():
        db.execute(f'CREATE INDEX "by_{name}" ON sentences USING hnsw ("{name}" {operators})')
    db.execute(f"ANALYZE sentences; SET hnsw.ef_search = {CANDIDATES}")


def nearest(db: psycopg.Connection, column: str, vector: np.ndarray, count: int = 10) -> Rows:
    """Return the rows that are nearest to a query by one column."""
    kind, _, operator = COLUMNS[column]
    query = digits(vector) if column == "bit" else str(vector.tolist())
    distance = f'"{column}" {operator} %(query)s::{kind.format(len(vector))}'
    text = f"SELECT id, {distance} FROM sentences ORDER BY {distance} LIMIT {count}"
    return list(db.execute(text, {"query": query}).fetchall())


def by_codes(db: psycopg.Connection, coder: Coder, vector: np.ndarray, count: int = 10) -> Rows:
    """Return the rows that are nearest by their codes, of those that are nearest by their bits."""
    ids = [row for row, _ in nearest(db, "bit", vector, CANDIDATES)]
    stored: dict[int, bytes] = dict(db.execute("SELECT id, codes FROM sentences WHERE id = ANY(%s)", (ids,)).fetchall())
    codes = np.stack([np.frombuffer(stored[row], np.uint8) for row in ids])
    found = coder.search(vector[None], codes, k=count)
    return [(ids[place], 1 - float(cosine)) for place, cosine in zip(found.rows[0], found.cosines[0], strict=True)]


def searches(db: psycopg.Connection, coder: Coder) -> dict[str, Callable[[np.ndarray], Rows]]:
    """Return ways to search: functions of a query that return ten rows."""
    by_column = {name: partial(nearest, db, name) for name in COLUMNS}
    return {**by_column, "codes": partial(by_codes, db, coder)}


def sizes(db: psycopg.Connection) -> dict[str, tuple[float, float]]:
    """Return the bytes of a row of each column, and those of its index for each row."""
    columns = {name: name if name != "codes" else "bit" for name in (*COLUMNS, "codes")}
    asked = ", ".join(
        f"avg(pg_column_size(\"{name}\")), pg_relation_size('by_{index}') / count(*)" for name, index in columns.items()
    )
    numbers: Sequence[float] = db.execute(f"SELECT {asked} FROM sentences").fetchone() or ()
    return dict(zip(columns, zip(numbers[::2], numbers[1::2], strict=True), strict=True))


def main() -> None:
    """Embed, store, search, and print sizes, times and the distances of the nearest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("query")
    parser.add_argument("--texts", default="builtin:english-1", help="a file of sentences [default: %(default)s]")
    parser.add_argument("--bytes", type=int, default=128, help="bytes of a code [default: %(default)s]")
    options = parser.parse_args()
    texts = list(Corpus((options.texts,), None, None))
    try:
        coder = Coder.of(options.bundle, options.bytes)
    except WhitenError as error:
        parser.error(str(error))
    with Encoder(options.bundle) as encoder:
        vectors, queries = encoder.encode(texts), encoder.encode([options.query, *texts[:20]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = [set(np.argsort(-(unit @ vector))[:10].tolist()) for vector in queries]
    with psycopg.connect() as db:
        start = time.perf_counter()
        store(db, vectors, coder.encode_array(vectors))
        print(f"stored {len(texts):,} sentences in {time.perf_counter() - start:.1f} s")
        for name, search in searches(db, coder).items():
            times, found = [], []
            for query in queries:
                start = time.perf_counter()
                found.append(search(query))
                times.append(time.perf_counter() - start)
            shares = [len({row for row, _ in rows} & best) / len(best) for rows, best in zip(found, exact, strict=True)]
            column, index = sizes(db)[name]
            print(
                f"\n{name}: {column:.0f} bytes a row, {index:.0f} in the index, "
                f"{1000 * statistics.median(times):.2f} ms a query, "
                f"{statistics.mean(shares):.1%} of the ten nearest found; distances:"
            )
            for row, distance in found[0][:3]:
                print(f"  {distance:.3f}  {texts[row]}")


if __name__ == "__main__":
    main()
