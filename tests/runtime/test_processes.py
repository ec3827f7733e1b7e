"""Test an encoder in other processes: forked, spawned, started as users start them; and its memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import python
from support.corpus import sentences
from support.vectors import ROUNDING, worst
from whiten import Encoder


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_encoder_works_in_pools_of_processes(tiny: Encoder, method: str) -> None:
    texts = sentences(40)
    want = tiny.encode(texts)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for got in pool.map(tiny.encode, [texts, texts, texts]):
            assert worst(got, want) < ROUNDING


def _python(code: str, bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as users do: without the variable CI, with which onnxruntime behaves better."""
    kept = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("HF_")}
    command = [sys.executable, "-c", code, str(bundle), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=kept, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also its children
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


PRELOADED = """
import os, sys, numpy as np
from pathlib import Path
from whiten import Encoder
bundle = Path(sys.argv[1])
os.chdir(bundle.parent)
encoder, unused = (Encoder(bundle.name, threads=2) for _ in range(2))
os.chdir("/")
used = encoder.encode(["a text"] * 50)
child = os.fork()
if child == 0:
    assert np.allclose(encoder.encode(["a text"] * 50), used)
    assert np.allclose(unused.encode(["a text"] * 50), used)
    sys.exit(7)  # the way a worker ends: destructors run
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert np.allclose(encoder.encode(["a text"] * 50), used)
print("done")
"""


@pytest.mark.parametrize("bundle", ["tiny_bundle", "long_bundle"])
def test_forked_worker_of_a_preloaded_service_encodes_and_exits(bundle: str, request: pytest.FixtureRequest) -> None:
    result = _python(PRELOADED, request.getfixturevalue(bundle))
    assert result.stdout == "done\n", result.stderr


TELEMETRY = """
import os, sys, threading, time
from whiten import Encoder
before = len(os.listdir("/proc/self/task"))
encoder = Encoder(sys.argv[1], threads=1)
for _ in range(600):  # threads that ended may still be listed for a moment
    if len(os.listdir("/proc/self/task")) == before:
        break
    time.sleep(0.1)
print(len(os.listdir("/proc/self/task")) - before, "ORT_DISABLE_TELEMETRY" in os.environ)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_onnxruntime_starts_no_telemetry_thread(tiny_bundle: Path) -> None:
    result = _python(TELEMETRY, tiny_bundle)
    assert result.stdout == "0 False\n", result.stderr


THREADS = """
import os, sys, threading
threads = set()
for name in ("putenv", "unsetenv"):
    function = getattr(os, name)
    def changing(*arguments, function=function):
        threads.add(threading.current_thread().name)
        function(*arguments)
    setattr(os, name, changing)
from whiten import Encoder
for _ in range(2):
    with Encoder(sys.argv[1]) as encoder:
        encoder.encode(["a"])
    print(sorted(threads))
    threads.clear()
"""


def test_the_environment_is_changed_in_the_thread_of_the_caller_alone(tiny_bundle: Path) -> None:
    """And no more once onnxruntime is imported: C functions in other threads read it without a lock."""
    result = _python(THREADS, tiny_bundle)
    assert result.stdout == "['MainThread']\n[]\n", result.stderr


MISSING = """
import sys
sys.modules["onnxruntime"] = None
from whiten import Encoder, WhitenError
try: Encoder(sys.argv[1])
except WhitenError as error: print(error)
"""


def test_missing_onnxruntime_names_the_extra_to_install(tiny_bundle: Path) -> None:
    result = _python(MISSING, tiny_bundle)
    assert "pip install onnxruntime" in result.stdout, result.stderr
    assert result.stdout.count("\n") == 1


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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_does_not_grow_with_the_number_of_texts(tiny_bundle: Path) -> None:
    result = python(PLATEAU, tiny_bundle, check=True, timeout=300)
    assert float(result.stdout) <= 1.03
