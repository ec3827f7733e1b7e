"""Test which sessions are created, which of them runs a batch, and that memory is given back."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import copy_bundle, edit_manifest
from support.cli import python
from whiten import BundleError, Encoder, WhitenError
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.encoder import embedder_of
from whiten_runtime.inference import batching, loading
from whiten_runtime.inference import engine as sessions
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import ForkSafeSession
from whiten_runtime.inference.gpu import check_padding
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.inference.options import EncodeOptions
from whiten_runtime.opened_bundle import Opening, reopen
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


def test_single_batch_has_all_threads_and_several_have_one_each(tiny_bundle: Path, created: list[int | None]) -> None:
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=3, tuning=NO_LITTLE_WORK))
    alone = made.run(QUERY)
    assert created == [None]
    many = made.run([*MANY, *QUERY])
    assert created == [None, 1]
    assert np.isfinite(many).all()
    np.testing.assert_allclose(many[-1:], alone, rtol=1e-4, atol=1e-4)
    made.run(QUERY)
    assert created == [None, 1]


def test_two_threads_share_a_session(tiny_bundle: Path, created: list[int | None]) -> None:
    """The second thread of a call runs its batches on the session's own thread."""
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=2, tuning=NO_LITTLE_WORK))
    in_pool, run_async = [], made._wide.get().run_async

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

        def run_async(self, *arguments: object) -> None:
            in_pool.append(1)
            run_async(*arguments)

    session = made._wide.get()
    made._wide._session = Counting()
    apart = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=3, tuning=NO_LITTLE_WORK)).run(MANY)
    del created[1:]
    many = made.run(MANY)
    np.testing.assert_array_equal(many, made.run(MANY))
    np.testing.assert_allclose(many, apart, rtol=1e-4, atol=1e-4)
    made.run(QUERY)
    assert created == [None]
    assert in_pool


def test_run_in_the_pool_that_fails_is_an_error(tiny_bundle: Path) -> None:
    session = ForkSafeSession(lambda: create_session(tiny_bundle / MODEL_FILE, SessionOptions(threads=2)))
    feed = batching.pad_batch([[10**9, 3]], 0)
    with pytest.raises(WhitenError, match="onnxruntime failed: "):
        session.run_in_pool([OUTPUT], feed)
    with pytest.raises(WhitenError, match="onnxruntime failed: "):
        session.run_in_pool([OUTPUT], {"input_ids": feed["input_ids"]})
    good = batching.pad_batch(QUERY, 0)
    np.testing.assert_array_equal(session.run_in_pool([OUTPUT], good)[0], session.run([OUTPUT], good)[0])


def test_a_graph_that_gives_too_few_vectors_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_engine(tiny_bundle / MODEL_FILE, 0)
    monkeypatch.setattr(made, "_run", lambda *arguments: [np.zeros((0, 3), np.float32)])
    with pytest.raises(BundleError, match=r"an array of shape \[0, 3\] for 2 texts; wanted a row for each"):
        made.run_batch([[1], [2]])


def test_gpu_batches_share_a_session(
    tiny_bundle: Path, created: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "NVIDIA", {"CPUExecutionProvider": "cpu"})
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=2, tuning=Tuning(gpu_token_budget=128)))
    many = made.run([*MANY, *QUERY])
    assert np.isfinite(many).all()
    np.testing.assert_allclose(made.run(QUERY), many[-1:], rtol=1e-4, atol=1e-4)
    assert created == [None]


def test_first_window_for_a_gpu_is_short(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"sentence {index} of some words" for index in range(300)]
    with Encoder(tiny_bundle) as encoder:
        want = encoder.encode(texts)
        sizes = []
        parts = encoder._embedder.tokenizer.parts
        encoder._engine.schedule = replace(Schedule.on_gpu(), first_window=64)
        monkeypatch.setattr(
            encoder._embedder.tokenizer, "parts", lambda window: sizes.append(len(window)) or parts(window)
        )
        np.testing.assert_allclose(encoder.encode(texts), want, rtol=1e-4, atol=1e-4)
        assert sizes == [64, 236]
        assert encoder.encode(texts[:64]).shape == (64, want.shape[1])


def test_graph_without_a_network_has_one_thread(golden: Path, tmp_path: Path, created: list[int | None]) -> None:
    """Its batches are too short to hand them to threads; a second session would be a second table."""
    bundle = copy_bundle(golden / "bundle-v1-int8", tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(layers=[0]))
    _, embedder = loading.load_bundle(bundle, SessionOptions(threads=2, tuning=NO_LITTLE_WORK))
    assert embedder.engine.schedule == Schedule.of_lookup()
    want = open_engine(bundle / MODEL_FILE, 0, SessionOptions(threads=1)).run(MANY)
    np.testing.assert_allclose(embedder.engine.run(MANY), want, rtol=1e-4, atol=1e-4)
    embedder.engine.run(QUERY)
    assert created == [1, None]


def test_text_alone_has_the_vector_that_the_engine_gives_its_ids(tiny: Encoder) -> None:
    embedder = tiny._embedder
    for options in (
        EncodeOptions(),
        EncodeOptions(width=tiny.dimension, normalize=True),
        EncodeOptions(width=3, batch_size=1, normalize=True),
        EncodeOptions(width=3),
        EncodeOptions(prompt="query: "),
    ):
        for text in ("", "a text", "long " * 99):
            (ids,) = embedder.tokenizer.tokenize([options.prompt + text])
            rows = embedder.engine.run([embedder.tokenizer.cut(ids)])
            want = rows[:, : options.width]
            if options.normalize:
                want = want / np.linalg.norm(want, axis=1, keepdims=True)
            counted: list[int] = []
            got = embedder.embed([text], options, counted.append)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
            assert (got.shape, got.dtype, counted) == ((1, options.width or tiny.dimension), np.float32, [1])
            assert got.flags.owndata
            assert got.flags.writeable


def test_engine_works_after_its_model_file_is_replaced(
    tiny_bundle: Path, tmp_path: Path, created: list[int | None]
) -> None:
    model = copy_bundle(tiny_bundle, tmp_path) / MODEL_FILE
    made = open_engine(model, 0, SessionOptions(threads=3, tuning=NO_LITTLE_WORK))
    want = made.run(MANY)
    shutil.copy(model, model.with_suffix(".new"))
    model.with_suffix(".new").replace(model)
    np.testing.assert_array_equal(made.run(MANY), want)
    np.testing.assert_allclose(made.run(QUERY), made.run([*QUERY, *MANY])[:1], rtol=1e-4, atol=1e-4)
    assert created == [None, 1]


def test_warmup_creates_only_the_session_of_queries(tiny_bundle: Path, created: list[int | None]) -> None:
    options = SessionOptions(threads=2, tuning=NO_LITTLE_WORK)
    with reopen(Encoder, Opening(tiny_bundle, options)) as encoder:
        encoder.warmup()
        encoder.encode("a query")
        encoder.encode(["two", "short ones"])
    assert created == [None]


@pytest.mark.parametrize("little_work", [0, 1e9])
def test_encode_works_at_interpreter_exit(tiny_bundle: Path, little_work: float) -> None:
    """The interpreter starts no new threads when it runs functions at exit."""
    code = """
import atexit, sys
from pathlib import Path
from whiten import Encoder
from whiten_runtime.opened_bundle import Opening, reopen
from whiten_runtime.ort.session import SessionOptions, Tuning
options = SessionOptions(threads=2, tuning=Tuning(little_work=float(sys.argv[2])))
encoder = reopen(Encoder, Opening(Path(sys.argv[1]), options))
encoder.encode(["some text"] * 300)
atexit.register(lambda: print(len(encoder.encode(["some text"] * 300))))
"""
    result = python(code, tiny_bundle, little_work, timeout=240)
    assert result.stdout == "300\n", result.stderr


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


def test_windows_of_a_fit_do_not_depend_on_the_device(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle) as encoder:
        embedder = encoder._embedder
        encoder._engine.schedule = replace(Schedule.on_gpu(), first_window=64)
        sizes = [len(window) for window, _ in embedder.windows(["a text"] * 100, first=4096)]
        assert sizes == [100]
        assert [len(window) for window, _ in embedder.windows(["a text"] * 100)] == [64, 36]


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


def test_of_a_closed_encoder(golden: Path) -> None:
    encoder = Encoder(golden / "bundle-v1", threads=1)
    runner = embedder_of(encoder).engine
    encoder.close()
    with pytest.raises(WhitenError, match="closed"):
        runner.trim()
