"""Test batchers in processes that fork, are interrupted, or end while requests wait."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from support.processes import python

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]


_python = partial(python, timeout=300)


FORKED = """
import os, signal, sys, numpy as np
from whiten_runtime import Encoder
from whiten_serving import Batcher
encoder = Encoder(sys.argv[1], threads=2)
batcher = Batcher(encoder, max_queue_tokens=10**9)
texts = ["a text of some words"] * 400
want = encoder.encode(texts)
pending = [batcher.submit(texts) for _ in range(20)]
child = os.fork()
if child == 0:
    signal.alarm(60)
    assert batcher.stats().queue_requests == 0
    pending[-1].cancel()
    for _ in range(5):
        assert np.allclose(batcher.submit(texts).result(60), want, atol=1e-4)
    batcher.close()
    sys.exit(7)  # the way a worker ends: destructors and exit hooks run
for future in pending:
    assert np.allclose(future.result(60), want, atol=1e-4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert np.allclose(batcher.submit(texts).result(60), want, atol=1e-4)
print("done")
"""


def test_a_forked_child_has_lanes_of_its_own_while_its_parent_computes(tiny_bundle: Path) -> None:
    result = _python(FORKED, tiny_bundle)
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr


ENDING = """
import sys, threading, time
from whiten_runtime import Encoder
from whiten_serving import Batcher
batcher = Batcher(Encoder(sys.argv[1], threads=2), max_queue_tokens=10**9)
futures = [batcher.submit(["a text of some words " * 8] * 500) for _ in range(40)]
futures[0].result()
print(len([future for future in futures if not future.done()]) > 5, flush=True)
if sys.argv[2] == "raise":
    raise SystemExit(3)
if sys.argv[2] == "interrupt":
    raise KeyboardInterrupt
if sys.argv[2] == "thread":
    threading.Thread(target=lambda: print(futures[-1].result().shape)).start()
"""


@pytest.mark.parametrize(("way", "code"), [("end", 0), ("raise", 3), ("interrupt", -signal.SIGINT), ("thread", 0)])
def test_an_interpreter_ends_while_requests_wait(tiny_bundle: Path, way: str, code: int) -> None:
    """A thread that is no daemon gets what it waits for first."""
    result = _python(ENDING, tiny_bundle, way)
    assert result.returncode == code, result.stderr
    assert result.stdout == ("True\n(500, 32)\n" if way == "thread" else "True\n")
    assert result.stderr.count("\n") == 0 or way == "interrupt"


INTERRUPTED = """
import signal, sys, _thread
from whiten_runtime import Encoder
from whiten_serving import Batcher
with Batcher(Encoder(sys.argv[1], threads=2), max_queue_tokens=10**9) as batcher:
    futures = [batcher.submit(["a text of some words " * 8] * 500) for _ in range(20)]
    futures[-1].cancel()
    try:
        signal.alarm(0)
        _thread.interrupt_main()
        while True:
            futures[-2].result(60)
    except KeyboardInterrupt:
        print(batcher.submit("a").result(60).shape)
print(futures[-2].done())
"""


def test_an_interrupt_ends_no_lane(tiny_bundle: Path) -> None:
    result = _python(INTERRUPTED, tiny_bundle)
    assert (result.stdout, result.returncode) == ("(32,)\nTrue\n", 0), result.stderr


ASYNC = """
import asyncio, sys
from whiten_serving import AsyncEncoder
async def main():
    encoder = AsyncEncoder(sys.argv[1], max_queue_tokens=10**9)
    tasks = [asyncio.create_task(encoder.encode(["a text of some words"] * 500)) for _ in range(40)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    print("begun", flush=True)
asyncio.run(main())
"""


def test_an_interpreter_ends_after_a_loop_that_left_requests(tiny_bundle: Path) -> None:
    result = _python(ASYNC, tiny_bundle)
    assert (result.stdout, result.stderr, result.returncode) == ("begun\n", "", 0)


GROWTH = """
import os, sys, threading
from pathlib import Path
from whiten_runtime import Encoder
from whiten_serving import Batcher, OverloadedError
count = int(sys.argv[2])
def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def client(batcher, number):
    for place in range(number, count, 16):
        text = "word " * (place % 40)
        future = batcher.submit([text] * (1 + place % 3), deadline=0 if place % 97 == 0 else None)
        if place % 31 == 0:
            future.cancel()
        elif place % 97:
            future.result(60)
def all_clients(batcher):
    threads = [threading.Thread(target=client, args=[batcher, number]) for number in range(16)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
with Batcher(Encoder(sys.argv[1], threads=2), max_queue_tokens=10**9) as batcher:
    whole, count = count, max(count // 10, 500)
    all_clients(batcher)
    before, count = rss(), whole
    all_clients(batcher)
    stats = batcher.stats()
    assert stats.queue_tokens == stats.queue_requests == 0, stats
    print(rss() / before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads memory in /proc")
def test_memory_does_not_grow_with_requests(tiny_bundle: Path) -> None:
    result = _python(GROWTH, tiny_bundle, "100000")
    print(f"RSS after 100,000 requests: {float(result.stdout):.3f} of that after 10,000")
    assert float(result.stdout) <= 1.05, result.stderr
