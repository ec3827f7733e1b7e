"""Test `Batcher`: vectors of `Encoder.encode`, refusals, how it ends."""

import copy
import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import copy_bundle
from support.corpus import NASTY, sentences
from support.runners import FakeRunner
from support.server import until
from support.vectors import worst
from whiten import ClosedError, Encoder, TextError, TooLongError, UsageError
from whiten_serving import AsyncEncoder, Batcher, DeadlineExceededError

CLOSE = 1e-6
"""Distance of a vector from that of `Encoder.encode`, relative to its norm."""

SMALL = 1e-5
"""The same for the golden bundle in float32: its whitening multiplies rounding by up to 100."""

PROMPTS = {"query": "query: ", "passage": "passage: "}


@pytest.fixture(scope="module", params=["bundle-v1", "bundle-v1-int8"])
def encoder(request: pytest.FixtureRequest, golden: Path) -> Iterator[Encoder]:
    with Encoder(golden / request.param) as opened:
        yield opened


@contextmanager
def holding(made: Any) -> Iterator[tuple[Any, FakeRunner, "Future[Any]"]]:
    """Let the runner of a batcher of one lane hold a first request until the block ends."""
    runner = FakeRunner(held=True)
    with made as batcher:
        batcher._queue.runner = runner
        first = batcher.submit("first")
        assert runner.begun.acquire(timeout=30)
        try:
            yield batcher, runner, first
        finally:
            runner.open.set()


@pytest.fixture
def held(tiny: Encoder) -> Iterator[tuple[Batcher, FakeRunner, "Future[Any]"]]:
    """A batcher of one lane, whose runner holds a first request."""
    with holding(Batcher(tiny, lanes=1)) as found:
        yield found


def bound(encoder: Encoder) -> float:
    return SMALL if encoder.manifest.precision == "fp32" else CLOSE


def test_vectors_are_those_of_encode_under_load(encoder: Encoder) -> None:
    texts = [*NASTY, *sentences(400)]
    alone = np.stack([encoder.encode(text) for text in texts])
    with Batcher(encoder) as batcher:
        futures = [batcher.submit(text) for text in texts] + [batcher.submit(texts[start::7]) for start in range(7)]
        futures.append(batcher.submit(iter(texts)))
        got = np.stack([future.result(60) for future in futures[: len(texts)]])
        assert worst(got, alone) <= bound(encoder)
        for start, future in enumerate(futures[len(texts) : -1]):
            assert worst(future.result(60), alone[start::7]) <= bound(encoder)
        assert worst(futures[-1].result(60), alone) <= bound(encoder)


@pytest.mark.parametrize(
    "options",
    [
        {"normalize_embeddings": True},
        {"truncate_dim": 7},
        {"truncate_dim": 7, "normalize_embeddings": True, "precision": "int8"},
        {"precision": "ubinary"},
        {"prompt": "query: "},
        {"prompt_name": "query"},
        {"prompt_name": "query", "normalize_embeddings": True},
    ],
)
@pytest.mark.parametrize("pooled", [True, False])
def test_options_are_those_of_encode(options: dict[str, Any], pooled: bool, golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1-int8", tmp_path, prompts=PROMPTS, include_prompt=pooled)
    texts = sentences(50)
    with Encoder(bundle) as encoder, Batcher(encoder) as batcher:
        futures = [batcher.submit(texts[:7], **options), batcher.submit(texts), batcher.submit([], **options)]
        futures += [batcher.submit(text, **options) for text in texts]
        wanted = [encoder.encode(texts[:7], **options), encoder.encode(texts), encoder.encode([], **options)]
        wanted += [*encoder.encode(texts, **options)]
        for future, want in zip(futures, wanted, strict=True):
            got = future.result(60)
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            if got.dtype == np.float32 and got.size:
                assert worst(got, want) <= CLOSE
            else:
                assert (got == want).mean() > 0.99 if got.size else True


@pytest.mark.parametrize("bundle", ["bundle-v1", "bundle-v1-int8"])
def test_batchers_share_lanes(golden: Path, tmp_path: Path, bundle: str) -> None:
    texts = sentences(60)
    with Encoder(golden / "bundle-v1") as one, Encoder(golden / bundle) as two, Batcher(one) as first:
        second = Batcher(two, shared_with=first)
        futures = [each.submit(text) for text in texts for each in (first, second)]
        got = [future.result(60) for future in futures]
        assert worst(np.stack(got[::2]), one.encode(texts)) <= SMALL
        assert worst(np.stack(got[1::2]), two.encode(texts)) <= SMALL
        last = second.submit(texts)
        second.close()
        assert last.done()
        for given in ("a", list[str]()):
            with pytest.raises(ClosedError):
                second.submit(given)
        assert first.submit("a").result(60).shape == (32,)


@pytest.mark.parametrize(("texts", "name"), [(["a", 3], r"texts\[1\]"), (None, "texts")])
def test_what_is_no_text_is_refused(tiny: Encoder, texts: Any, name: str) -> None:
    with Batcher(tiny) as batcher, pytest.raises(TextError, match=name):
        batcher.submit(texts).result(60)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "int4"},
        {"truncate_dim": 33},
        {"prompt_name": "none"},
        {"batch_size": 8},
        {"batch_size": True},
        {"timeout": "soon"},
        {"timeout": float("nan")},
    ],
    ids=str,
)
def test_options_that_cannot_be_used_are_refused(tiny: Encoder, options: Any) -> None:
    with Batcher(tiny) as batcher:
        for texts in ("a", ["a"], []):
            with pytest.raises(UsageError, match=next(iter(options))):
                batcher.submit(texts, **options).result(60)
        for long in ("long " * 99, "long " * 9999):
            with pytest.raises(TooLongError):
                batcher.submit(long, truncate=False).result(60)
        assert batcher.submit("a", truncate_dim=np.int64(3)).result(60).shape == (3,)
        default: Any = {"batch_size": None}
        assert batcher.submit("a", **default).result(60).shape == (tiny.dimension,)


@pytest.mark.parametrize(
    ("name", "value"), [("lanes", 0), ("lanes", 1.5), ("lanes", 99999), ("max_wait", 0), ("max_wait", True)]
)
def test_numbers_out_of_range_are_refused(golden: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        Batcher(golden / "bundle-v1", **{name: value})


def test_the_encoder_it_opened_is_closed_with_it(golden: Path, tiny: Encoder) -> None:
    with Batcher(golden / "bundle-v1") as batcher:
        future = batcher.submit(sentences(50))
    assert future.result(0).shape == (50, 32)
    for closed in (batcher.submit, batcher.encoder.encode):
        with pytest.raises(ClosedError):
            closed("a")
    with Batcher(tiny) as borrowing:
        pass
    assert borrowing.encoder.encode("a").shape == (32,)


def test_a_deadline_that_passed_is_told(held: tuple[Batcher, FakeRunner, "Future[Any]"]) -> None:
    batcher, runner, first = held
    late = [batcher.submit("late", timeout=seconds) for seconds in (0, -1, 0.01)]
    early = batcher.submit("early", timeout=60)
    time.sleep(0.05)
    runner.open.set()
    for future in late:
        with pytest.raises(DeadlineExceededError) as caught:
            future.result(60)
        assert isinstance(caught.value, TimeoutError)
    assert early.result(60).shape == (3,)
    assert first.result(60).shape == (3,)
    assert runner.texts == 2
    assert batcher.stats().counted.expired == 3


def test_a_cancelled_future_is_not_computed_and_ends_for_whoever_waits(tiny: Encoder) -> None:
    with holding(Batcher(tiny, lanes=1)) as (batcher, runner, first):
        futures = [batcher.submit(["a", "b"]) for _ in range(60)]
        until(lambda: batcher.stats().queue_requests == 60)
        assert all(future.cancel() for future in futures[:50])
        assert wait(futures[:50], timeout=30).not_done == set()
        with pytest.raises(CancelledError):
            futures[0].result(1)
        assert (batcher.stats().counted.cancelled, batcher.stats().queue_requests) == (50, 10)
        assert first.cancel()  # it runs already: nobody gets its vector
        runner.open.set()
        assert all(future.result(60).shape == (2, 3) for future in futures[50:])
        assert runner.texts == 1 + 20
        assert not futures[50].cancel()


def test_a_callback_may_submit_and_close(tiny: Encoder) -> None:
    batcher = Batcher(tiny)
    nested: list[Future[Any]] = []
    first = batcher.submit("a")
    first.add_done_callback(lambda done: nested.append(batcher.submit("b")))
    first.add_done_callback(lambda done: batcher.close())
    assert first.result(60).shape == (32,)
    until(lambda: nested)
    assert nested[0].result(60).shape == (32,)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [Batcher, AsyncEncoder])
def test_neither_can_be_pickled(tiny: Encoder, kind: Any, way: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match=kind.__name__):
        way(kind(tiny))


def test_nothing_of_a_request_stays_in_memory(tiny: Encoder) -> None:
    """Without the garbage collector: a service should not have to wait for it."""
    gc.collect()
    gc.disable()
    try:
        with Batcher(tiny) as batcher:
            vectors = [weakref.ref(batcher.submit("a").result(60).base) for _ in range(20)]
            batcher.submit("b").result(60)
        assert sum(vector() is not None for vector in vectors) <= 1
    finally:
        gc.enable()


def test_a_forked_child_is_told_to_make_its_own(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with Batcher(tiny) as batcher:
        batcher.submit("a").result(30)
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            for texts in ("a", []):
                with pytest.raises(ClosedError):
                    batcher.submit(texts)

        assert batcher.submit("a").result(30).shape == (32,)


def test_a_batcher_that_is_dropped_ends_its_threads_and_is_freed(golden: Path) -> None:
    """What the collector of cycles does not look at, as after gc.freeze(), is freed too."""
    before = threading.active_count()
    gc.disable()
    try:
        for _ in range(3):
            batcher = Batcher(golden / "bundle-v1", lanes=2)
            batcher.submit("a").result(60)
            dropped = weakref.ref(batcher), weakref.ref(batcher.encoder)
            del batcher
            until(lambda: not any(ref() for ref in dropped))  # noqa: B023
        until(lambda: threading.active_count() <= before)
    finally:
        gc.enable()


def test_equal_texts_of_a_call_are_computed_once(tiny: Encoder) -> None:
    texts = ["same", "other", "same", "word " * 300, "same", "word " * 300]
    with Batcher(tiny) as batcher:
        assert worst(batcher.submit(texts).result(60), tiny.encode(texts)) <= SMALL
        assert batcher.stats().counted.texts == 3
