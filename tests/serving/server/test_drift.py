"""Drift of the traffic: what is measured, and what the metrics page shows."""

import re
from pathlib import Path

import numpy as np
import pytest

from support.agreeing import change_bundle
from support.bundles import copy_bundle
from support.corpus import sentences
from support.server import RunningServer, run, until
from whiten_runtime.errors import UsageError
from whiten_serving.server import drift as module
from whiten_serving.server.drift import DriftWatch, WatchedEncoder
from whiten_whitening import drift


@pytest.fixture
def watch(tiny_bundle: Path) -> DriftWatch:
    return DriftWatch(drift.DriftMonitor(tiny_bundle))


def test_the_report_is_that_of_the_monitor(tiny_bundle: Path, watch: DriftWatch) -> None:
    texts = list(sentences(150))
    with WatchedEncoder(tiny_bundle) as encoder:
        vectors = encoder.encode(texts)
    for start in range(0, 150, 7):
        watch.add(vectors[start : start + 7])
    expected = drift.DriftMonitor(tiny_bundle).update(vectors).report()
    found = watch.report()
    assert found is not None
    assert (found.n, found.verdict) == (150, expected.verdict)
    assert found.mean_shift == pytest.approx(expected.mean_shift)
    assert found.iso_score == pytest.approx(expected.iso_score)


def test_only_the_last_windows_count(watch: DriftWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 100)
    generator = np.random.default_rng(0)
    width = watch.monitor.manifest.dimension
    for _ in range(10):
        watch.add(generator.normal(50, 1, (50, width)).astype(np.float32))
    far = watch.report()
    for _ in range(5):
        watch.add(generator.normal(0, 1, (50, width)).astype(np.float32))
    near = watch.report()
    assert far is not None
    assert near is not None
    assert near.mean_shift < far.mean_shift / 10
    assert near.n <= 200


def test_nothing_that_is_added_raises(watch: DriftWatch) -> None:
    width = watch.monitor.manifest.dimension
    assert watch.report() is None
    watch.add(np.full((2, width), np.nan, np.float32))
    watch.add(np.ones((4, width), np.float32))
    assert watch.report() is None


def test_an_encoder_shows_what_its_runner_computes(tiny_bundle: Path) -> None:
    with WatchedEncoder(tiny_bundle) as encoder:
        seen = encoder.watch_drift()
        ids = encoder.tokenized(list(sentences(20))).ids
        vectors = encoder.token_runner().run(ids)
        report = seen.report()
        assert report is not None
        assert report.n == len(vectors) == 20


@pytest.mark.slow
def test_the_metrics_page_shows_it(tiny_bundle: Path) -> None:
    with RunningServer(tiny_bundle, "--drift", "--no-access-log") as server:
        server.call("POST", "/v1/embeddings", {"input": list(sentences(200))})

        def vectors() -> float:
            page = server.call("GET", "/metrics").body.decode()
            found = re.search(r'^whiten_drift_vectors\{model="bundle-v1"\} (\S+)$', page, re.MULTILINE)
            return float(found[1]) if found else 0.0

        until(lambda: vectors() == 200)
        page = server.call("GET", "/metrics").body.decode()
        for name in ("mean_shift", "spectrum_ratio", "average_cosine", "iso_score"):
            assert re.search(rf'^whiten_drift_{name}\{{model="bundle-v1"\}} -?\d', page, re.MULTILINE), name
        assert 'whiten_drift_verdict{model="bundle-v1",verdict="' in page


def test_a_bundle_whose_drift_cannot_be_measured(tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = drift.DriftMonitor(golden / "bundle-v1")
    import msgspec

    monitor.manifest = msgspec.structs.replace(monitor.manifest, normalize=True)
    with pytest.raises(UsageError, match="have length 1"):
        DriftWatch(monitor)


def test_a_bundle_without_a_whitening_is_refused(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    change_bundle(bundle, whitening=None)
    code, said = run(bundle, "--drift", "--port", 0)
    assert code in (1, 2)
    assert "whitening" in said
    assert said.count("\n") == 1
