"""An int8 bundle on one core: what a container of 256 MB holds. No cgroup is made: peak memory is read from Linux."""

import json
import os
from pathlib import Path

import pytest

from support.cli import python

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from whiten import Encoder

with Encoder(sys.argv[1]) as encoder:
    for count in (1, 50):
        encoder.encode([f"A sentence of a few words, number {index}." for index in range(count)])
    encoder.encode("word " * 400)
    agreement = encoder.verify()
fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak_kb": int(fields["VmHWM"].split()[0]), "cores": len(os.sched_getaffinity(0)),
                  "cosine": agreement.min_cosine}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_an_int8_bundle_takes_125_mb_on_one_core(minilm_int8_bundle: Path) -> None:
    """Load it, embed short texts, many and a long one, and verify it."""
    environment = {name: value for name, value in os.environ.items() if name != "WHITEN_THREADS"}
    done = python(PROGRAM, minilm_int8_bundle, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cores"] == 1
    assert found["cosine"] >= 0.98
    assert found["peak_kb"] <= 125 << 10, found
