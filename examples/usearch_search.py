# /// script
# dependencies = ["whiten", "usearch>=2.16,<2.20"]
# ///
"""Index sentences with usearch, once with float32 vectors and once with int8, and search them.

python examples/usearch_search.py bundles/minilm --texts FILE "a query"
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from usearch.index import Index

from whiten import Corpus, Encoder


def as_int8(vectors: np.ndarray) -> np.ndarray:
    """Round to whole numbers, one scale a vector."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    rounded: np.ndarray = np.rint(127 * vectors / np.maximum(largest, 1e-30))
    return rounded.astype(np.int8)


def main() -> None:
    """Embed, index, search, and print sizes and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("query")
    parser.add_argument("--texts", default="builtin:english-1", help="a file of sentences [default: %(default)s]")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write the indexes [default: here]")
    options = parser.parse_args()
    paths = {kind: options.folder / f"sentences-{kind}.usearch" for kind in ("f32", "i8")}
    if there := next(filter(Path.exists, paths.values()), None):
        parser.error(f"{there} exists; move it away, or name another --folder")
    texts = list(Corpus((options.texts,), None, None))
    with Encoder(options.bundle) as encoder:
        start = time.perf_counter()
        vectors = encoder.encode(texts)
        print(f"embedded {len(texts):,} sentences in {time.perf_counter() - start:.1f} s")
        queries = encoder.encode([options.query, *texts[:20]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = [set(np.argsort(-(unit @ query))[:10].tolist()) for query in queries]
    for kind, rows, asked in (("f32", vectors, queries), ("i8", as_int8(vectors), as_int8(queries))):
        index = Index(ndim=rows.shape[1], metric="cos", dtype=kind)
        start = time.perf_counter()
        index.add(np.arange(len(rows)), rows)
        built = time.perf_counter() - start
        path = paths[kind]
        index.save(path)
        times, found = [], []
        for vector in asked:
            start = time.perf_counter()
            found.append(index.search(vector, 10))
            times.append(time.perf_counter() - start)
        shares = (len(set(map(int, hits.keys)) & best) / len(best) for hits, best in zip(found, exact, strict=True))
        print(
            f"\n{kind}: {path.stat().st_size / 1e6:.1f} MB, built in {built:.1f} s, "
            f"{1000 * statistics.median(times):.2f} ms a query, {statistics.mean(shares):.1%} of the ten nearest found"
        )
        for key, distance in zip(found[0].keys[:3], found[0].distances[:3], strict=True):
            print(f"  {1 - distance:.3f}  {texts[int(key)]}")


if __name__ == "__main__":
    main()
