"""Test that memory does not grow."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PLATEAU = """
import random, sys
from whiten import Encoder

def resident():
    return int(open("/proc/self/statm").read().split()[1])

encoder = Encoder(sys.argv[1], threads=2)
generator, done, early = random.Random(0), 0, None
while done < 20_000:
    texts = [" ".join(["text"] * generator.randint(0, 60)) for _ in range(generator.choice((1, 5, 30, 400)))]
    encoder.encode(texts)
    done += len(texts)
    if early is None and done >= 2_000:
        early = resident()
print(resident() / early)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_does_not_grow_with_the_number_of_texts(tiny_bundle: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PLATEAU, str(tiny_bundle)], capture_output=True, text=True, check=True, timeout=300
    )
    assert float(result.stdout) <= 1.03
