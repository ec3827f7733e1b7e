"""Print a table: what a search finds by passages that were embedded alone, and in one pass over a long text.

whiten-export minilm --max-length 512 --out L512
python -m benchmarks.late_chunking L512 --data cranfield > benchmarks/late_chunking/table.md

"Abstracts": as many abstracts as fit, one after another, are a long text, and each is a passage of it. "Sentences":
each abstract is a text and its sentences are passages; an abstract is as near to a query as its nearest sentence. What
does not fit in one pass is cut between passages, and a passage that is too long alone is cut as `encode` cuts it.
"""

import argparse
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import made_by
from whiten import Encoder
from whiten_evaluation.retrieval import TOP, measured
from whiten_runtime.files.judged import Collection, read_collections
from whiten_runtime.inference.vectors import Nearest

Vectors = NDArray[np.float32]
Texts = Sequence[Sequence[str]]
"""Texts, each as its consecutive passages."""

MEASURES = ("nDCG@10", "R@10", "R@100")


def alone(encoder: Encoder, texts: Texts) -> Vectors:
    """Embed each passage as a text of its own."""
    vectors: Vectors = encoder.encode(
        [passage for passages in texts for passage in passages], normalize_embeddings=True
    )
    return vectors


def in_one_pass(encoder: Encoder, texts: Texts) -> Vectors:
    """Embed as many passages of a text in one pass as fit."""
    rows = []
    for part in [part for passages in texts for part in parts(encoder, passages)]:
        if len(part) == 1:
            rows.append(alone(encoder, [part]))
            continue
        ends = np.cumsum([len(passage) + 1 for passage in part])
        spans = [(end - 1 - len(passage), end - 1) for end, passage in zip(ends, part, strict=True)]
        rows.append(encoder.encode_passages(" ".join(part), spans, normalize_embeddings=True))
    return np.concatenate(rows)


def parts(encoder: Encoder, passages: Sequence[str]) -> Iterator[list[str]]:
    """Yield consecutive passages that fit in one pass; a passage that does not fit is alone."""
    part: list[str] = []
    for passage in passages:
        if part and len(encoder.tokens(" ".join([*part, passage]))) > encoder.max_seq_length:
            yield part
            part = []
        part.append(passage)
    if part:
        yield part


def sentences(text: str) -> list[str]:
    """Return the sentences of an abstract, which has a blank before each full stop; the whole where there is none."""
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part] or ["."]


def row(collection: Collection, encoder: Encoder, name: str, texts: Texts, owners: Sequence[int]) -> Iterator[str]:
    """Yield a line of the table for each way to embed passages; `owners` has the document of each passage."""
    queries = alone(encoder, [list(collection.queries.values())])
    ways: dict[str, Callable[[Encoder, Texts], Vectors]] = {"alone": alone, "in one pass": in_one_pass}
    places = {document: place for place, document in enumerate(collection.ids)}
    order = [places[document] for document in collection.documents]
    for way, embed in ways.items():
        start = time.perf_counter()
        vectors = embed(encoder, texts)
        seconds = time.perf_counter() - start
        scores = np.full((len(queries), len(order)), -2, np.float32)
        np.maximum.at(scores.T, np.take(order, owners), (queries @ vectors.T).T)
        rows = np.argsort(-scores, axis=1, kind="stable")[:, : TOP + 1]
        found = measured(collection, Nearest(rows, np.take_along_axis(scores, rows, axis=1)))
        means = " | ".join(f"{found[measure].mean():.2f}" for measure in MEASURES)
        yield f"| {name} | {len(vectors):,} | {way} | {means} | {seconds:.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.late_chunking", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="a collection in BEIR's layout")
    arguments = parser.parse_args()
    (collection,) = read_collections(arguments.data, None)
    texts = list(collection.documents.values())
    split = [sentences(text) for text in texts]
    print(made_by(f"late_chunking {arguments.bundle.name} --data {arguments.data.name}", "once") + "\n")
    print(f"| passages | number | embedded | {' | '.join(MEASURES)} | seconds |\n|---|---|---|---|---|---|---|")
    with Encoder(arguments.bundle) as encoder:
        owners = [document for document, passages in enumerate(split) for _ in passages]
        for line in row(collection, encoder, "abstracts", [texts], range(len(texts))):
            print(line, flush=True)
        for line in row(collection, encoder, "sentences", split, owners):
            print(line, flush=True)


if __name__ == "__main__":
    main()
