"""Models of different numbers of workers on one scheduler: which batches run at once, and on how many threads."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import copy_bundle, edit_manifest
from support.corpus import sentences
from support.runners import Clock, FakeRunner
from support.server import until
from support.vectors import worst
from whiten import Encoder
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_runtime.inference.sessions import GraphFile
from whiten_runtime.opened.model import embedder_of
from whiten_serving import AsyncEncoder
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.opening import make_scheduler
from whiten_serving.requests import Request
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import Settings

LARGE = property(lambda graph: 1 << 31, lambda graph, size: graph.__dict__.update(bytes=1 << 31))
"""Size of a graph that is held once."""

Made = Callable[..., Scheduler]
Held = Callable[..., FakeRunner]


@pytest.fixture
def made() -> Iterator[Made]:
    """Return a function that makes a scheduler, which is closed when the test ends."""
    with ExitStack() as stack:

        def make(lanes: int) -> Scheduler:
            scheduler = Scheduler(lanes)
            stack.callback(scheduler.close, wait=False)
            return scheduler

        yield make


@pytest.fixture
def runner_of(made: Made) -> Iterator[Held]:
    """Return a function that makes a runner that holds its batches, at most until the test ends."""
    with ExitStack() as stack:

        def make(workers: int, budget: int = 16, **more: Any) -> FakeRunner:
            runner = FakeRunner(held=True, schedule=Schedule(workers, budget, **more))
            stack.callback(runner.open.set)
            return runner

        yield make


def request_of(runner: Engine, *lengths: int) -> Request:
    return Request(runner, TokenizedTexts([[1] * length for length in lengths]), np.asarray, lambda request: None)


def submit(scheduler: Scheduler, runner: Engine, *lengths: int) -> Request:
    request = request_of(runner, *lengths)
    scheduler.submit(request)
    return request


def running(*runners: FakeRunner) -> list[int]:
    return [len(runner.batches) for runner in runners]


@pytest.mark.parametrize("threads", [4, 8])
def test_a_model_of_one_worker_leaves_the_other_lanes_to_others(made: Made, runner_of: Held, threads: int) -> None:
    lookup, deep = runner_of(1), runner_of(threads)
    scheduler = made(threads)
    for _ in range(3 * threads):
        submit(scheduler, lookup, 16)
    for _ in range(3 * threads):
        submit(scheduler, deep, 16)
    until(lambda: running(lookup, deep) == [1, threads - 1])
    assert scheduler.stats().lanes_busy == threads
    deep.open.set()
    until(lambda: running(lookup, deep) == [1, 3 * threads])  # though texts of the other model are older
    until(lambda: scheduler.stats().lanes_busy == 1)
    lookup.open.set()
    until(lambda: running(lookup, deep) == [3 * threads, 3 * threads])
    until(lambda: scheduler.stats().lanes_busy == 0)
    assert (scheduler.stats().queue_tokens, scheduler.stats().queue_requests) == (0, 0)


def test_a_lane_goes_to_the_model_that_has_had_less_time(made: Made, runner_of: Held) -> None:
    lookup, deep, scheduler = runner_of(1), runner_of(2), made(2)
    submit(scheduler, lookup, 16)
    until(lambda: running(lookup) == [1])
    older = submit(scheduler, lookup, 16)
    submit(scheduler, deep, 16)
    until(lambda: running(lookup, deep) == [1, 1])
    younger = submit(scheduler, deep, 16)
    lookup.open.set()
    until(lambda: running(lookup, deep) == [1, 2])
    deep.open.set()
    until(lambda: older.result is not None and younger.result is not None)
    assert younger.started <= older.started


def test_batches_have_the_budget_of_their_model(made: Made, runner_of: Held) -> None:
    scheduler = made(2)
    for budget, size in ((8, 2), (64, 16)):
        runner = runner_of(2, budget, split=False)
        runner.open.set()
        submit(scheduler, runner, *[4] * 48)
        until(lambda: sum(len(ids) for ids, _ in runner.batches) == 48)  # noqa: B023
        assert {len(ids) for ids, _ in runner.batches} == {size}


@pytest.mark.parametrize(("split", "sizes"), [(True, {5}), (False, {10})])
def test_a_call_is_divided_only_where_the_model_divides_it(
    made: Made, runner_of: Held, split: bool, sizes: set[int]
) -> None:
    runner = runner_of(2, 10**6, split=split)
    submit(made(2), runner, *[20] * 10)
    until(lambda: runner.texts == 10)  # before any of them ends
    runner.open.set()
    assert {len(ids) for ids, _ in runner.batches} == sizes


@pytest.mark.parametrize(
    ("lanes", "workers", "submitted", "alone"),
    [
        (4, 4, 4, [True, True, False, False]),
        (2, 16, 2, [True, True]),
        (1, 4, 1, [True]),
        (2, 2, 2, [True, False]),
        (4, 1, 1, [False]),  # its only session
    ],
)
def test_a_batch_has_all_threads_if_most_would_be_idle(
    made: Made, runner_of: Held, lanes: int, workers: int, submitted: int, alone: list[bool]
) -> None:
    runner, scheduler = runner_of(workers), made(lanes)
    for count in range(1, submitted + 1):
        submit(scheduler, runner, 3)
        until(lambda: running(runner) == [count])  # noqa: B023
    assert [wide for _, wide in runner.batches] == alone


@pytest.mark.parametrize(("lanes", "workers", "alone"), [(1, 4, True), (2, 16, True), (4, 4, False), (8, 8, False)])
def test_under_load_a_batch_has_all_threads_only_if_lanes_are_few(
    made: Made, runner_of: Held, lanes: int, workers: int, alone: bool
) -> None:
    runner, scheduler = runner_of(workers), made(lanes)
    for _ in range(lanes):
        submit(scheduler, runner, 16)
    until(lambda: running(runner) == [lanes])
    for _ in range(20):
        submit(scheduler, runner, 16)
    runner.open.set()
    scheduler.close()
    assert alone in {wide for _, wide in runner.batches[lanes:-lanes]}
    assert (not alone) not in {wide for _, wide in runner.batches[lanes : 21 - lanes]}


def test_the_work_of_a_model_of_one_worker_is_measured_as_that_of_one_lane(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no less time in a scheduler of four lanes."""
    seconds = {}
    for lanes in (1, 4):
        clock = Clock()
        monkeypatch.setattr("whiten_serving.scheduler.time", clock)
        runner, scheduler = FakeRunner(False, 1e-3, Schedule(1, 16), clock), made(lanes)
        for _ in range(10):
            submit(scheduler, runner, 16)
        until(lambda: runner.texts == 10 and not scheduler.stats().lanes_busy)  # noqa: B023
        runner.open.clear()
        submit(scheduler, runner, 1)
        until(lambda: runner.texts == 11)  # noqa: B023
        submit(scheduler, runner, *[16] * 100)
        seconds[lanes] = scheduler.stats().queue_seconds
        runner.open.set()
    assert seconds == {1: pytest.approx(1.6), 4: pytest.approx(1.6)}


@pytest.fixture
def encoders(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[Encoder]]]:
    """Return a function that opens three models: of layer 0, of a small network, and of a graph that is held once."""
    lookup = copy_bundle(golden / "bundle-v1-int8", tmp_path)
    edit_manifest(lookup, lambda manifest: manifest.update(layers=[0]))
    with ExitStack() as stack:

        def opened(threads: int) -> list[Encoder]:
            small = [stack.enter_context(Encoder(path, threads=threads)) for path in (lookup, golden / "bundle-v1")]
            with monkeypatch.context() as patch:
                patch.setattr(GraphFile, "bytes", LARGE, raising=False)
                return [*small, stack.enter_context(Encoder(golden / "bundle-v1", threads=threads))]

        yield opened


@pytest.mark.parametrize("threads", [4, 8])
def test_models_of_different_workers_share_as_many_lanes_as_there_are_threads(
    encoders: Callable[[int], list[Encoder]], threads: int
) -> None:
    opened = encoders(threads)
    assert [embedder_of(encoder).engine.schedule.workers for encoder in opened] == [1, threads, 1]
    scheduler = make_scheduler(opened, Settings())
    assert scheduler.lanes == threads
    queues = [EncoderQueue(encoder, scheduler) for encoder in opened]
    texts = [*sentences(60), "", "word " * 300]
    requests = [(queue, queue.request(texts[place:])) for place in range(20) for queue in queues]
    for queue, request in requests:
        queue.put(request, lambda done: None)
    until(lambda: all(request.finished for _, request in requests))
    wanted = [queue.encoder.encode(texts) for queue in queues]
    for number, (_, request) in enumerate(requests):
        place, queue = divmod(number, 3)
        assert worst(request.result, wanted[queue][place:]) <= 1e-5
    until(lambda: not scheduler.stats().lanes_busy)
    assert (scheduler.stats().queue_tokens, scheduler.stats().queue_requests) == (0, 0)
    scheduler.close()


def test_two_lanes_of_many_threads_compute_on_all_of_them(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane alone would compute in one thread."""
    wide, run = [], Engine.run_batch

    def seen(
        self: Engine, ids: Any, prompt_tokens: int = 0, outputs: Any = (OUTPUT,), side_by_side: bool = False
    ) -> Any:
        wide.append(not side_by_side)
        return run(self, ids, prompt_tokens, outputs, side_by_side)

    monkeypatch.setattr(Engine, "run_batch", seen)
    texts = list(sentences(300))

    async def embed(encoder: Encoder) -> list[np.ndarray]:
        async with AsyncEncoder(encoder, lanes=2) as shared:
            return await asyncio.gather(*(shared.encode(texts[place::16]) for place in range(16)))

    with Encoder(golden / "bundle-v1", threads=16) as encoder:
        expected = encoder.encode(texts)
        wide.clear()
        for place, vectors in enumerate(asyncio.run(embed(encoder))):
            assert worst(vectors, expected[place::16]) <= 1e-5
    assert len(wide) > 2
    assert all(wide)
