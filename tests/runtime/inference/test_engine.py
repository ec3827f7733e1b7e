"""Test which sessions are created, which of them runs a batch, and that memory is given back."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import copy_bundle, edit_manifest
from whiten import Encoder, WhitenError
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.encoder import embedder_of
from whiten_runtime.inference import batching, loading
from whiten_runtime.inference import engine as sessions
from whiten_runtime.inference.engine import ForkSafeSession
from whiten_runtime.inference.gpu import check_padding
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.ort.session import SessionOptions, Tuning, create_session

NO_LITTLE_WORK = Tuning(little_work=0)
QUERY = [[5, 6, 7]]
MANY = [[5 + length % 9] * length for length in range(1, 33)] * 4


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Record the number of threads of each session that is created; None means all."""
    numbers: list[int | None] = []

    def create(graph: Path, options: SessionOptions, threads: int | None) -> Any:
        numbers.append(threads)
        return create_session(graph, options, threads)

    monkeypatch.setattr(sessions, "create_session", create)
    return numbers


@pytest.mark.parametrize(
    ("threads", "tuning", "calls", "sessions"),
    [
        (2, Tuning(), (QUERY, MANY), [1]),  # a small graph has one thread for either
        (2, Tuning(little_work=1e9), (MANY, QUERY), [1]),
        (1, NO_LITTLE_WORK, (QUERY, MANY), [None]),
        (2, Tuning(little_work=0, largest_held_twice=0), (QUERY, MANY), [None]),  # a large graph is held once
        (3, NO_LITTLE_WORK, (MANY, QUERY), [None, 1, None]),  # a session that never ran is freed
    ],
)
def test_sessions_that_are_created(
    tiny_bundle: Path,
    created: list[int | None],
    threads: int,
    tuning: Tuning,
    calls: tuple[list[list[int]], ...],
    sessions: list[int | None],
) -> None:
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=threads, tuning=tuning))
    for ids in calls:
        made.run(ids)
    assert created == sessions


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_a_session_or_have_their_own_give_the_same_vectors(
    tiny_bundle: Path, created: list[int | None], threads: int
) -> None:
    want = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1)).run([*MANY, *QUERY])
    del created[:]
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=threads, tuning=NO_LITTLE_WORK))
    for _ in range(2):
        np.testing.assert_allclose(made.run(QUERY), want[-1:], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(made.run([*MANY, *QUERY]), want, rtol=1e-4, atol=1e-4)
    assert created == ([None] if threads == 2 else [None, 1])


def test_graph_without_a_network_gives_the_same_vectors(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1-int8", tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(layers=[0]))
    _, embedder = loading.load_bundle(bundle, SessionOptions(threads=2, tuning=NO_LITTLE_WORK))
    want = open_engine(bundle / MODEL_FILE, 0, SessionOptions(threads=1)).run(MANY)
    np.testing.assert_allclose(embedder.engine.run(MANY), want, rtol=1e-4, atol=1e-4)


def test_run_in_the_pool_that_fails_is_an_error(tiny_bundle: Path) -> None:
    session = ForkSafeSession(lambda: create_session(tiny_bundle / MODEL_FILE, SessionOptions(threads=2)))
    feed = batching.pad_batch([[10**9, 3]], 0)
    with pytest.raises(WhitenError, match="onnxruntime failed: "):
        session.run_in_pool([OUTPUT], feed)
    with pytest.raises(WhitenError, match="onnxruntime failed: "):
        session.run_in_pool([OUTPUT], {"input_ids": feed["input_ids"]})
    good = batching.pad_batch(QUERY, 0)
    np.testing.assert_array_equal(session.run_in_pool([OUTPUT], good)[0], session.run([OUTPUT], good)[0])


def test_one_failing_batch_fails_the_call(tiny_bundle: Path) -> None:
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=2))
    with pytest.raises(WhitenError, match="onnxruntime failed"):
        made.run([*MANY, [10**9]])
    assert np.isfinite(made.run(MANY)).all()


def test_padding_is_checked_on_loading_for_cuda(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_padding(open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1)), 48, "fp32")
    checked: list[tuple[int, str]] = []
    monkeypatch.setattr(loading, "check_padding", lambda engine, *what: checked.append(what))
    monkeypatch.setattr(loading, "CUDA_PROVIDER", "CPUExecutionProvider")
    loading.load_bundle(tiny_bundle)
    assert checked == [(48, "fp32")]


TEXTS = ["a text", "another text of more words than the first"]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_memory_is_given_back(golden: Path, threads: int) -> None:
    with Encoder(golden / "bundle-v1", threads=threads) as encoder:
        runner = embedder_of(encoder).engine
        before = encoder.encode(TEXTS)
        runner.run_batch([[1] * encoder.max_seq_length] * 2000, side_by_side=True)
        large = resident()
        runner.trim()
        assert resident() < large - 1_000_000
        np.testing.assert_array_equal(encoder.encode(TEXTS), before)


def test_number_of_concurrent_gpu_runs_is_limited(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "NVIDIA", {"CPUExecutionProvider": "cpu"})
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1, tuning=Tuning(gpu_token_budget=64)))
    session = made._session.get()
    running, most = [], []

    class Counting:
        def run(self, *arguments: object) -> object:
            running.append(1)
            most.append(len(running))
            time.sleep(0.001)
            result = session.run(*arguments)
            running.pop()
            return result

    made._session._session = Counting()
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: made.run(MANY), range(6)))
    assert max(most) == batching.GPU_WORKERS
