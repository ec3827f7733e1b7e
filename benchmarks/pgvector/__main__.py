"""Print a table: recall of the ten nearest and time of a query, in PostgreSQL, FAISS and usearch.

whiten-export minilm --layers 6 --whitening centre --out L6
PGHOST=... python -m benchmarks.pgvector L6 --sentences captions.txt > benchmarks/pgvector/table.md

The first sentences are the queries, the next ones are stored. "codes" orders the 100 nearest by bits by codes of 128
bytes. All indexes have the parameters of pgvector's: 16 links, 64 candidates while they are built, 100 in a search.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks.machine import made_by
from examples.pgvector_search import CANDIDATES, Rows, searches, store
from whiten import Coder, Encoder
from whiten_runtime.files.rows import read_texts

LINKS, BUILT_WITH, BYTES = 16, 64, 128

Vectors = NDArray[np.float32]
Search = Callable[[Vectors, int], NDArray[np.int64]]
"""Function that returns so many rows for a query, the nearest first."""


def faiss_rows(index: Any, query: Vectors, count: int) -> NDArray[np.int64]:
    """Search an index of bits of FAISS."""
    rows: NDArray[np.int64] = index.search(np.packbits(query > 0)[None], count)[1][0]
    return rows


def usearch_rows(index: Any, query: Vectors, count: int) -> NDArray[np.int64]:
    """Search an index of usearch."""
    keys = index.search(np.packbits(query > 0) if str(index.dtype) == "ScalarKind.B1" else query, count).keys
    return np.asarray(keys, np.int64)


def indexes(vectors: Vectors) -> Iterator[tuple[str, str, float, Search]]:
    """Yield a program, what it stores, the bytes of a number and a search, for indexes outside PostgreSQL."""
    import faiss
    from usearch.index import Index

    signs, width = np.packbits(vectors > 0, axis=1), vectors.shape[1]
    flat, graph = faiss.IndexBinaryFlat(8 * signs.shape[1]), faiss.IndexBinaryHNSW(8 * signs.shape[1], LINKS)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = BUILT_WITH, CANDIDATES
    for name, index in (("FAISS, all rows", flat), ("FAISS, HNSW", graph)):
        index.add(signs)
        yield name, "bit", 1 / 8, partial(faiss_rows, index)
    options = {"connectivity": LINKS, "expansion_add": BUILT_WITH, "expansion_search": CANDIDATES}
    for name, kind, metric, size in (
        ("vector", "f32", "cos", 4),
        ("halfvec", "f16", "cos", 2),
        ("bit", "b1", "hamming", 1 / 8),
    ):
        index = Index(ndim=width, metric=metric, dtype=kind, **options)
        index.add(np.arange(len(vectors)), signs if kind == "b1" else vectors)
        yield "usearch, HNSW", name, size, partial(usearch_rows, index)


def rescored(search: Search, coder: Coder, codes: NDArray[np.uint8], query: Vectors, count: int) -> NDArray[np.int64]:
    """Order the candidates of a search by their codes."""
    rows = search(query, CANDIDATES)
    best: NDArray[np.int64] = rows[coder.search(query[None], codes[rows], k=count).rows[0]]
    return best


def of_postgres(search: Callable[[Vectors], Rows], query: Vectors, count: int) -> NDArray[np.int64]:
    """Return the rows of a search of the example, which returns ten."""
    return np.array([row for row, _ in search(query)[:count]])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pgvector", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--sentences", type=Path, required=True, help="one a line")
    parser.add_argument("--stored", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=200)
    arguments = parser.parse_args()
    texts = list(dict.fromkeys(read_texts(arguments.sentences)))
    texts = texts[: arguments.queries + arguments.stored]
    coder = Coder.of(arguments.bundle, BYTES)
    with Encoder(arguments.bundle) as encoder:
        rows = encoder.encode(texts)
    queries, vectors = rows[: arguments.queries], rows[arguments.queries :]
    codes, width = coder.encode_array(vectors), vectors.shape[1]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = [set(np.argsort(-(unit @ query))[:10].tolist()) for query in queries]
    with psycopg.connect() as db:
        start = time.perf_counter()
        store(db, vectors, codes)
        built = time.perf_counter() - start
        (server,) = db.execute("SHOW server_version").fetchall()
        (extension,) = db.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchall()
        print(made_by(f"pgvector {arguments.bundle.name} --sentences {arguments.sentences.name}", "once") + "\n")
        print(f"PostgreSQL {server[0]}, pgvector {extension[0]}. {len(vectors):,} sentences, {len(queries)} queries.")
        print(f"COPY and the three indexes of pgvector took {built:.0f} s.\n")
        print("| program | stored | bytes of a vector | recall@10 | ms a query |\n|---|---|---|---|---|")
        ways: list[tuple[str, str, float, Search]] = []
        for name, search in searches(db, coder).items():
            size = {"vector": 4 * width, "halfvec": 2 * width, "bit": width / 8, "codes": BYTES}[name]
            ways.append(("pgvector, HNSW", name, size, partial(of_postgres, search)))
        for program, name, bytes_of_number, find in indexes(vectors):
            ways.append((program, name, bytes_of_number * width, find))
            if name == "bit":
                ways.append((program, "codes", BYTES, partial(rescored, find, coder, codes)))
        for program, name, size, find in ways:
            start = time.perf_counter()
            found = [set(find(query, 10).tolist()) for query in queries]
            seconds = time.perf_counter() - start
            recall = np.mean([len(own & best) / 10 for own, best in zip(found, exact, strict=True)])
            print(
                f"| {program} | {name} | {size:,.0f} | {recall:.3f} | {1000 * seconds / len(queries):.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
