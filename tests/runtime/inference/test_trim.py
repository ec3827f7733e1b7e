"""Memory that a proof or a long text took is given back, and vectors stay what they were."""

import os
from pathlib import Path

import numpy as np
import pytest

from whiten import Encoder
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.engine import TokenRunner
from whiten_runtime.opened.encoder import embedder_of

TEXTS = ["a text", "another text of more words than the first"]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_memory_is_given_back(golden: Path, threads: int) -> None:
    with Encoder(golden / "bundle-v1", threads=threads) as encoder:
        runner = TokenRunner(embedder_of(encoder).engine)
        before = encoder.encode(TEXTS)
        runner.run([[1] * encoder.max_seq_length] * 2000)
        large = resident()
        runner.trim()
        assert resident() < large - 1_000_000
        np.testing.assert_array_equal(encoder.encode(TEXTS), before)


def test_of_a_closed_encoder(golden: Path) -> None:
    encoder = Encoder(golden / "bundle-v1", threads=1)
    runner = TokenRunner(embedder_of(encoder).engine)
    encoder.close()
    with pytest.raises(WhitenError, match="closed"):
        runner.trim()
