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
from support.vectors import token_ids, worst
from whiten import Encoder, NoVectorError, TextError, TooLongError, UsageError, WhitenError
from whiten_runtime.inference.embedder import Embedder
from whiten_serving import AsyncEncoder, Batcher, DeadlineExceededError, OverloadedError, TooManyTokensError

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
        with pytest.raises(WhitenError, match="the batcher is closed"):
            second.submit("a")
        with pytest.raises(WhitenError, match="the batcher is closed"):
            second.submit([])
        assert first.submit("a").result(60).shape == (32,)


@pytest.mark.parametrize(("texts", "message"), [(["a", 3], r"texts\[1\] is int 3"), (None, "texts is NoneType None")])
def test_what_is_no_text_is_refused(tiny: Encoder, texts: Any, message: str) -> None:
    with Batcher(tiny) as batcher, pytest.raises(TextError, match=f"{message}; wanted a str"):
        batcher.submit(texts).result(60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "precision is 'int4'"),
        ({"precision": ["int8"]}, "precision is"),
        ({"truncate_dim": 33}, "truncate_dim is 33"),
        ({"truncate_dim": True}, "truncate_dim is True"),
        ({"truncate_dim": [3]}, r"truncate_dim is \[3\]"),
        ({"prompt_name": "none"}, "none"),
        ({"batch_size": 8}, "batch_size is 8, but batches are those of the lanes; leave it out"),
        ({"batch_size": np.int64(1), "truncate_dim": 3}, "batch_size is 1, but"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"timeout": "soon"}, "timeout is 'soon'; wanted seconds from now, or None"),
        ({"timeout": float("nan")}, "timeout is nan"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tiny: Encoder, options: Any, message: str) -> None:
    with Batcher(tiny) as batcher:
        for texts in ("a", ["a"], []):
            with pytest.raises(UsageError, match=message):
                batcher.submit(texts, **options).result(60)
        for long in ("long " * 99, "long " * 9999):
            with pytest.raises(TooLongError):
                batcher.submit(long, truncate=False).result(60)
        assert batcher.submit("a", truncate_dim=np.int64(3)).result(60).shape == (3,)
        default: Any = {"batch_size": None}
        assert batcher.submit("a", **default).result(60).shape == (tiny.dimension,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": 1.5}, "lanes is 1.5"),
        ({"lanes": 99999}, "lanes is 99999; wanted a whole number from 1 to"),
        ({"max_wait": 0}, "max_wait is 0"),
        ({"max_wait": True}, "max_wait is True"),
    ],
)
def test_numbers_out_of_range_are_refused(golden: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Batcher(golden / "bundle-v1", **options)


def test_the_encoder_it_opened_is_closed_with_it(golden: Path, tiny: Encoder) -> None:
    with Batcher(golden / "bundle-v1") as batcher:
        future = batcher.submit(sentences(50))
    assert future.result(0).shape == (50, 32)
    with pytest.raises(WhitenError, match="closed"):
        batcher.submit("a")
    with pytest.raises(WhitenError, match="closed"):
        batcher.encoder.encode("a")
    with Batcher(tiny) as borrowing:
        pass
    assert borrowing.encoder.encode("a").shape == (32,)


def test_an_encoder_closed_meanwhile_fails_requests_with_one_line(golden: Path) -> None:
    encoder = Encoder(golden / "bundle-v1")
    with Batcher(encoder) as batcher:
        request = batcher._queue.request("a")
        encoder.close()
        batcher._queue.put(request, lambda done: None)
        until(lambda: request.finished)
        assert "this encoder was closed" in str(request.error)
        with pytest.raises(WhitenError, match="this encoder was closed"):
            batcher.submit("a")


def test_a_deadline_that_passed_is_told(held: tuple[Batcher, FakeRunner, "Future[Any]"]) -> None:
    batcher, runner, first = held
    late = [batcher.submit("late", timeout=seconds) for seconds in (0, -1, 0.01)]
    early = batcher.submit("early", timeout=60)
    time.sleep(0.05)
    runner.open.set()
    for future in late:
        with pytest.raises(DeadlineExceededError, match="not computed within"):
            future.result(60)
        with pytest.raises(TimeoutError):
            future.result(60)
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


def test_more_than_may_wait_is_refused_before_it_is_tokenised(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = token_ids(tiny, ["word"])
    monkeypatch.setattr("whiten_serving.scheduler.MAX_QUEUE_TOKENS", 6 * len(row))
    with holding(Batcher(tiny, lanes=1)) as (batcher, runner, first):
        with pytest.raises(TooManyTokensError) as too_many:
            batcher.submit([f"word {number}" for number in range(4)])  # though next to nothing waits
        assert too_many.value.limit == 3 * len(row)
        runner.open.set()
        first.result(60)
        runner.open.clear()
        texts = batcher.submit(["word"] * 100)  # equal texts are computed once
        while batcher.stats().counted.rejected < 2:
            try:
                batcher.submit("word")
            except OverloadedError as error:
                assert error.retry_after >= 0
        monkeypatch.setattr(Embedder, "tokenize", None)
        with pytest.raises(OverloadedError):
            batcher.submit(["word"] * 100)
        monkeypatch.undo()
        runner.open.set()
        assert texts.result(60).shape == (100, 3)
        until(lambda: not batcher.stats().lanes_busy and not batcher.stats().queue_tokens)
        assert batcher.submit("a").result(60).shape == (3,)


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
    with pytest.raises(UsageError, match=f"an? {kind.__name__} has threads, which cannot be pickled"):
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
                with pytest.raises(WhitenError, match="before this process was forked; make one in each process"):
                    batcher.submit(texts)
            batcher._queue.scheduler.close()  # it has none of the parent's threads, and waits for none
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


def test_a_text_without_a_vector_is_named_by_its_index_in_the_call(tiny: Encoder) -> None:
    with Batcher(tiny, lanes=1) as batcher:
        (lost,) = token_ids(tiny, ["lost"])
        runner = FakeRunner()
        run = runner.run_batch

        def run_batch(ids: Any, *arguments: Any, **named: Any) -> Any:
            vectors = run(ids, *arguments, **named)
            vectors[[row == lost for row in ids]] = np.nan
            return vectors

        runner.run_batch = run_batch  # type: ignore[method-assign]
        batcher._queue.runner = runner
        error = batcher.submit(["a", "a", "b", "lost", "a", "lost"]).exception(60)
    assert isinstance(error, NoVectorError)
    assert sorted(error.failures) == [3, 5]
