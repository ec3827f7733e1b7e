"""Print a table: bytes of a vector, Spearman's correlation on STS tasks, and recall of the ten nearest sentences.

whiten-export minilm --layers 6 --whitening centre --out L6
python -m benchmarks.codes L6 --data DIR --sentences wikitext.txt > benchmarks/codes/table.md

How codes are made was chosen on STS-B dev, STS12 and STS14; the table has the other tasks. Recall: 1,000 sentences look
for their ten nearest by float32 among 10,000 others, the queries in float32 and the others coded; "re-ranked" takes the
100 nearest by the codes and orders them by float32.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import made_by
from whiten import Coder, Encoder
from whiten_evaluation.sts import StsData, read_sts
from whiten_runtime.files.rows import read_texts
from whiten_whitening.measures import cosines, spearman

Vectors = NDArray[np.float32]
Kind = tuple[str, int, Callable[[Vectors], Vectors], Callable[[Vectors], Vectors]]
"""Name, bytes of a vector, and functions that give what is compared of a query and of what is stored."""

TASKS = ("STS-B", "SICK-R", "STS13", "STS15", "STS16")
SIZES = (16, 32, 48, 64, 96, 128, 190)
SEARCHED, QUERIES, TOP, CANDIDATES = 10_000, 1_000, 10, 100


def leading(kept: int | None, rows: Vectors) -> Vectors:
    """Return the first coordinates; all for None."""
    return rows[:, :kept]


def int8(kept: int | None, rows: Vectors) -> Vectors:
    """Return the first coordinates rounded to 255 steps, with a scale for each vector."""
    steps = np.abs(rows[:, :kept]).max(axis=1, keepdims=True) / np.float32(127)
    return np.asarray(np.rint(rows[:, :kept] / steps) * steps, np.float32)


def signs(rows: Vectors) -> Vectors:
    """Return the signs of the vectors as they are."""
    return np.where(rows > 0, np.float32(1), np.float32(-1))


def decoded(coder: Coder, rows: Vectors) -> Vectors:
    """Return the coordinates that the codes of vectors stand for."""
    return coder.decode(coder.encode(rows))


def kinds(bundle: Path, width: int) -> Iterator[Kind]:
    """Yield the kinds of vectors to compare."""
    whole = partial(leading, None)
    yield "float32", 4 * width, whole, whole
    for kept in (256, 128, 64):
        yield f"first {kept}, float32", 4 * kept, partial(leading, kept), partial(leading, kept)
    yield "int8", width + 4, whole, partial(int8, None)
    for kept in (128, 64):
        yield f"first {kept}, int8", kept + 4, partial(leading, kept), partial(int8, kept)
    yield "binary", width // 8, whole, signs
    for size in reversed(SIZES):
        coder = Coder.of(bundle, size)
        name = f"codes, {coder.dims} x {coder.bits} bit{'s' if coder.bits > 1 else ''}"
        yield name, size, coder.transform, partial(decoded, coder)


def score(data: StsData, stored: dict[str, int], first: Vectors, second: Vectors) -> float:
    """Return the mean over tasks of the mean over sub-datasets of Spearman's correlation, times 100."""
    tasks = []
    for task in data.tasks:
        found = []
        for subset in task.subsets:
            one, other = ([stored[text] for text in texts] for texts in (subset.first, subset.second))
            similarities = cosines(first[one].astype(np.float64), second[other].astype(np.float64))
            found.append(spearman(similarities, np.asarray(subset.scores)))
        tasks.append(np.mean(found))
    return 100 * float(np.mean(tasks))


def nearest(queries: Vectors, rows: Vectors, count: int) -> NDArray[np.int64]:
    """Return the nearest rows of each query by cosine, [q, count]."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.argsort(-(queries @ unit.T), axis=1, kind="stable")[:, :count]


def recalls(wanted: NDArray[np.int64], found: NDArray[np.int64]) -> tuple[float, float]:
    """Return the shares of the wanted rows among the first ten and among all that were found."""
    shares = [
        (np.isin(own, rows[:TOP]).mean(), np.isin(own, rows).mean()) for own, rows in zip(wanted, found, strict=True)
    ]
    first, whole = np.mean(shares, axis=0)
    return float(first), float(whole)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codes", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="directory of the STS files")
    parser.add_argument("--sentences", type=Path, required=True, help="one a line")
    arguments = parser.parse_args()
    data = read_sts(arguments.data, TASKS)
    sentences = list(dict.fromkeys(read_texts(arguments.sentences)))
    random.Random(0).shuffle(sentences)
    with Encoder(arguments.bundle) as encoder:
        vectors = encoder.encode(list(data.texts))
        others = encoder.encode(sentences[: SEARCHED + QUERIES])
    searched, queries = others[:SEARCHED], others[SEARCHED:]
    wanted = nearest(queries, searched, TOP)
    stored = {text: row for row, text in enumerate(data.texts)}
    print(made_by(f"codes {arguments.bundle} --data DIR --sentences FILE", "once") + "\n")
    print("| vectors | bytes | Spearman, both coded | Spearman, query float32 | recall@10 | recall@10, re-ranked |")
    print("|---|---|---|---|---|---|")
    for name, size, query, code in kinds(arguments.bundle, vectors.shape[1]):
        coded = code(vectors)
        scores = score(data, stored, coded, coded), score(data, stored, query(vectors), coded)
        found = recalls(wanted, nearest(query(queries), code(searched), CANDIDATES))
        print(
            f"| {name} | {size:,} | {scores[0]:.2f} | {scores[1]:.2f} | {found[0]:.3f} | {found[1]:.3f} |", flush=True
        )


if __name__ == "__main__":
    main()
