"""Embed token rows of a few lengths inside an emulated machine: long.py OUT LENGTH,... BUNDLE...

Vectors go to OUT; results are printed, one object of JSON a line.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import whiten
from whiten_runtime.files.corpus import builtin_sentences

SHORT = 9


def long_vectors(path: Path, lengths: Sequence[int]) -> NDArray[np.float32]:
    """Return the vectors of a text of each length alone, then of each and a short text in one batch, [3 lengths, k]."""
    text = " ".join(sentence for _, sentence in builtin_sentences()[:600])
    with whiten.Encoder(path, threads=1) as encoder:
        (ids,) = encoder._tokenizer.tokenize([text])
        assert len(ids) >= max(lengths)
        alone = [[ids[:length]] for length in lengths]
        beside = [[ids[:length], ids[-SHORT:]] for length in lengths]
        return np.concatenate([encoder._engine.run_batch(batch) for batch in (*alone, *beside)])


def main(out: Path, lengths: str, *bundles: str) -> None:
    """Embed the texts with every bundle."""
    for bundle in map(Path, bundles):
        started = time.monotonic()
        np.save(out / f"{bundle.name}.npy", long_vectors(bundle, [int(length) for length in lengths.split(",")]))
        print(json.dumps({"bundle": bundle.name, "seconds": round(time.monotonic() - started, 1)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
