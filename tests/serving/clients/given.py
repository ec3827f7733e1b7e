"""Say what a client's program is given, and save what it got: URL TEXTS.json OUT.npz [BUNDLE].

`test_clients.py` runs the programs with_NAME.py in an environment of their own, without whiten.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

URL, _FILE, _OUT = sys.argv[1:4]
TEXTS: list[str] = json.loads(Path(_FILE).read_text("utf-8"))
MODEL = "small"


def save(**vectors: Any) -> None:
    """Save the vectors of the texts, by the ways in which they were got, and print the first and the last one."""
    arrays = {name: np.asarray(rows, np.float64) for name, rows in vectors.items()}
    np.savez(_OUT, **arrays)
    for name, rows in arrays.items():
        for index in (0, -1):
            numbers = " ".join(f"{number:.5f}" for number in rows[index][:4])
            print(f"{name}: {TEXTS[index][:30]!r} -> {numbers} ... ({rows.shape[1]})")
