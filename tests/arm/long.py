"""Embed token rows of 300 and 3,000 tokens inside an emulated machine: long.py OUT BUNDLE...

Vectors go to OUT; results are printed, one object of JSON a line.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import whiten
from whiten_runtime.files.corpus import builtin_sentences

LENGTHS = (300, 3000)
SHORT = 9


def long_vectors(path: Path) -> NDArray[np.float32]:
    """Return the vectors of a text of each length alone, then of each of them and a short text in one batch, [6, k]."""
    text = " ".join(sentence for _, sentence in builtin_sentences()[:600])
    with whiten.Encoder(path, threads=1) as encoder:
        (ids,) = encoder._tokenizer.tokenize([text])
        assert len(ids) >= max(LENGTHS)
        alone = [[ids[:length]] for length in LENGTHS]
        beside = [[ids[:length], ids[-SHORT:]] for length in LENGTHS]
        return np.concatenate([encoder._engine.run_batch(batch) for batch in (*alone, *beside)])


def main(out: Path, *bundles: str) -> None:
    """Embed the texts with every bundle."""
    for bundle in map(Path, bundles):
        started = time.monotonic()
        np.save(out / f"{bundle.name}.npy", long_vectors(bundle))
        print(json.dumps({"bundle": bundle.name, "seconds": round(time.monotonic() - started, 1)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
