"""Drift of the traffic: what is measured, and what the metrics page shows."""

import asyncio
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from support.bundles import copy_bundle
from support.corpus import sentences
from support.server import RunningServer, run, until
from whiten import Encoder
from whiten_runtime.errors import UsageError
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http import metrics as module
from whiten_serving.http.metrics import DriftWatch, _Traffic
from whiten_serving.http.models import ServedModel
from whiten_whitening import drift


@pytest.fixture
def traffic(tiny_bundle: Path) -> _Traffic:
    return _Traffic(drift.DriftMonitor(tiny_bundle))


async def embed(queue: EncoderQueue, texts: list[str]) -> None:
    await queue.answer(await queue.request_in_loop(texts))


def test_the_report_is_that_of_the_monitor(tiny_bundle: Path, tiny: Encoder) -> None:
    texts = list(sentences(150))
    model = ServedModel("tiny", EncoderQueue(tiny))
    watch = DriftWatch()
    watch.watch(model)
    scheduler = model.queue.scheduler
    scheduler.on_batch = [watch.on_batch]
    asyncio.run(embed(model.queue, texts))
    scheduler.close()
    expected = drift.DriftMonitor(tiny_bundle).update(tiny.encode(texts)).report()
    found = {one.name: {tuple(each.labels.values()): each.value for each in one.samples} for one in watch.collect()}
    assert found["whiten_drift_vectors"] == {("tiny",): 150}
    assert found["whiten_drift_mean_shift"]["tiny",] == pytest.approx(expected.mean_shift, rel=1e-3)
    assert found["whiten_drift_verdict"] == {("tiny", expected.verdict): 1}


def test_only_the_last_windows_count(traffic: _Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRIFT_WINDOW", 100)
    generator = np.random.default_rng(0)
    for _ in range(10):
        traffic.add(generator.normal(50, 1, (50, 32)).astype(np.float32))
    far = traffic.report()
    for _ in range(5):
        traffic.add(generator.normal(0, 1, (50, 32)).astype(np.float32))
    near = traffic.report()
    assert far is not None
    assert near is not None
    assert near.mean_shift < far.mean_shift / 10
    assert near.n <= 200


def test_nothing_that_is_added_raises(traffic: _Traffic) -> None:
    assert traffic.report() is None
    traffic.add(np.full((2, 32), np.nan, np.float32))
    assert traffic.report() is None
    traffic.add(np.ones((4, 32), np.float32))  # of equal texts
    found = traffic.report()
    assert found is not None
    assert found.n == 4


def test_normalised_vectors_have_no_report(traffic: _Traffic) -> None:
    traffic.add(np.eye(32, dtype=np.float32))
    assert traffic.report() is None


@pytest.mark.slow
def test_the_metrics_page_shows_it(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drift", "--no-access-log") as server:
        server.call("POST", "/v1/embeddings", {"input": list(sentences(200))})

        def vectors() -> float:
            page = server.call("GET", "/metrics").text
            found = re.search(r'^whiten_drift_vectors\{model="bundle-v1"\} (\S+)$', page, re.MULTILINE)
            return float(found[1]) if found else 0.0

        until(lambda: vectors() == 200)
        page = server.call("GET", "/metrics").text
        for name in ("mean_shift", "spectrum_ratio"):
            assert re.search(rf'^whiten_drift_{name}\{{model="bundle-v1"\}} -?\d', page, re.MULTILINE), name
        assert 'whiten_drift_verdict{model="bundle-v1",verdict="' in page


def test_a_bundle_whose_drift_cannot_be_measured(golden: Path) -> None:
    monitor = drift.DriftMonitor(golden / "bundle-v1")
    monitor.manifest = msgspec.structs.replace(monitor.manifest, normalize=True)
    with pytest.raises(UsageError, match="have length 1"):
        _Traffic(monitor)


def test_a_bundle_without_a_whitening_is_refused(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path, whitening=None)
    code, said = run(bundle, "--drift", "--port", 0)
    assert code in (1, 2)
    assert "whitening" in said
    assert said.count("\n") == 1
