"""Made similarity tasks: pairs of sentences whose scores have something to do with the words that they share."""

from pathlib import Path

import numpy as np

from support.corpus import sentences
from whiten_evaluation.sts import SUBSETS

_SEEN = 12  # words that are within the length of any model here

Rows = list[tuple[str, str, float]]


def rows(count: int, seed: int) -> Rows:
    """Pairs with a score from 0 to 5; none alike, or alike once they are cut: rounding would decide how those rank."""
    random = np.random.default_rng(seed)
    pool = sentences(300)
    made: Rows = []
    while len(made) < count:
        first = pool[random.integers(len(pool))]
        words = first.split()
        kept = random.integers(0, len(words) + 1)
        other = pool[random.integers(len(pool))].split()
        second = " ".join([*words[:kept], *other[kept:]]) or "nothing"
        if second.split()[:_SEEN] != words[:_SEEN]:
            made.append((first, second, round(5 * kept / len(words), 1)))
    return made


def write_paper_layout(folder: Path, tasks: tuple[str, ...], count: int = 60) -> dict[tuple[str, str], Rows]:
    """Files as WhiteningBERT has them; what is in them, by task and sub-dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for task in tasks:
        for number, subset in enumerate(SUBSETS[task]):
            name = {"STS-B": "sts-b", "SICK-R": "sickr"}.get(task, f"{task.lower()}.{subset}")
            made = rows(count + 10 * number, hash_of(task + subset))
            lines = [f"PAD\tPAD\tPAD\tPAD\t{score:.3f}\t{a}\t{b}" for a, b, score in made]
            (folder / f"{name}-test.csv").write_text("\n".join(lines) + "\n", "utf-8")
            content[task, subset] = made
    return content


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum((index + 1) * ord(character) for index, character in enumerate(text))
