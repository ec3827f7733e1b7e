# /// script
# dependencies = ["whiten", "apsw>=3.45", "sqlite-vec>=0.1.6"]
# ///
"""Store sentences in SQLite, once with float32 vectors and once with int8, and search them with sqlite-vec.

python examples/sqlite_search.py bundles/minilm --texts FILE "a query"
It takes apsw, because the sqlite3 of some Pythons cannot load extensions.
"""

import argparse
import statistics
import time
from pathlib import Path

import apsw
import numpy as np
import sqlite_vec

from whiten import Corpus, Encoder

VALUE = {"float": "?", "int8": "vec_int8(?)"}


def as_int8(vectors: np.ndarray) -> np.ndarray:
    """Round to whole numbers, one scale a vector."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    rounded: np.ndarray = np.rint(127 * vectors / np.maximum(largest, 1e-30))
    return rounded.astype(np.int8)


def store(path: Path, kind: str, texts: list[str], vectors: np.ndarray) -> apsw.Connection:
    """Write a new database with the sentences and their vectors."""
    database = apsw.Connection(str(path))
    database.enable_load_extension(True)
    sqlite_vec.load(database)
    column = f"embedding {kind}[{vectors.shape[1]}] distance_metric=cosine"
    database.execute(f"CREATE VIRTUAL TABLE docs USING vec0({column}, +text TEXT)")
    rows = ((number, row.tobytes(), text) for number, (row, text) in enumerate(zip(vectors, texts, strict=True)))
    with database:
        database.executemany(f"INSERT INTO docs (rowid, embedding, text) VALUES (?, {VALUE[kind]}, ?)", rows)
    return database


def search(database: apsw.Connection, kind: str, vector: np.ndarray) -> list[tuple[int, str, float]]:
    """Return row, sentence and cosine of the ten nearest sentences."""
    sql = f"SELECT rowid, text, 1 - distance FROM docs WHERE embedding MATCH {VALUE[kind]} AND k = 10 ORDER BY distance"
    return list(database.execute(sql, (vector.tobytes(),)))


def main() -> None:
    """Embed, store, search, and print sizes and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("query")
    parser.add_argument("--texts", default="builtin:english-1", help="a file of sentences [default: %(default)s]")
    parser.add_argument("--folder", type=Path, default=Path(), help="for the databases [default: here]")
    options = parser.parse_args()
    paths = {kind: options.folder / f"sentences-{kind}.db" for kind in VALUE}
    if there := next(filter(Path.exists, paths.values()), None):
        parser.error(f"{there} exists; move it away, or name another --folder")
    texts = list(Corpus((options.texts,), None, None))
    with Encoder(options.bundle) as encoder:
        start = time.perf_counter()
        vectors = encoder.encode(texts)
        print(f"embedded {len(texts):,} sentences in {time.perf_counter() - start:.1f} s")
        queries = encoder.encode([options.query, *texts[:20]])
    nearest = []
    for kind, rows, asked in (("float", vectors, queries), ("int8", as_int8(vectors), as_int8(queries))):
        path = paths[kind]
        database, times, found = store(path, kind, texts, rows), [], []
        for vector in asked:
            start = time.perf_counter()
            found.append(search(database, kind, vector))
            times.append(time.perf_counter() - start)
        database.close()
        nearest.append([{row for row, _, _ in hits} for hits in found])
        print(f"\n{kind}: {path.stat().st_size / 1e6:.1f} MB, {1000 * statistics.median(times):.1f} ms a query")
        for _, text, cosine in found[0][:3]:
            print(f"  {cosine:.3f}  {text}")
    same = statistics.mean(len(one & other) / len(one) for one, other in zip(*nearest, strict=True))
    print(f"\nof the ten nearest by float, {same:.1%} are among the ten nearest by int8")


if __name__ == "__main__":
    main()
