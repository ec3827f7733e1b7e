"""SIGHUP: bundles that were replaced are opened, proven and swapped, and no request sees two."""

import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from support.bundles import edit_manifest
from support.server import Load, RunningServer, until
from whiten import Encoder

pytestmark = pytest.mark.slow

TEXTS = [f"Sentence number {number} is {'very ' * (number % 7)}short." for number in range(12)]


@pytest.fixture
def place(golden: Path, tmp_path: Path) -> Path:
    """A bundle of its own, to be replaced."""
    shutil.copytree(golden / "bundle-v1", tmp_path / "model")
    return tmp_path / "model"


def swap(place: Path, other: Path) -> None:
    """Replace a bundle by renaming."""
    shutil.copytree(other, place.with_name("fresh"))
    place.rename(place.with_name(f"old-{time.monotonic_ns()}"))
    place.with_name("fresh").rename(place)


def vectors(bundle: Path) -> np.ndarray:
    with Encoder(bundle) as encoder:
        return encoder.encode(TEXTS)


def of(body: dict) -> np.ndarray:
    return np.array([one["embedding"] for one in body["data"]], np.float32)


def test_every_answer_is_of_one_bundle(place: Path, golden: Path) -> None:
    first, second = vectors(golden / "bundle-v1"), vectors(golden / "bundle-v1-int8")
    assert first.shape != second.shape
    with RunningServer(place, "--drain", 0, "--no-access-log") as server:
        load = Load(server.address, 8, {"input": TEXTS})
        for bundle in ("bundle-v1-int8", "bundle-v1", "bundle-v1-int8"):
            seen = len(server.lines)
            swap(place, golden / bundle)
            server.signal(signal.SIGHUP)
            server.message("model: reloaded", after=seen)
            answered = len(load.answers)
            until(lambda: len(load.answers) > answered + 8)  # noqa: B023
        load.stop()
        assert load.lost == []
        assert {answer.status_code for answer in load.answers} == {200}
        used = set()
        for answer in load.answers:
            expected = first if of(answer.json()).shape == first.shape else second
            assert np.allclose(of(answer.json()), expected, atol=1e-5)
            used.add(expected.shape)
        assert used == {first.shape, second.shape}
        assert np.allclose(of(server.call("POST", "/v1/embeddings", {"input": TEXTS}).json()), second, atol=1e-5)


def test_a_reload_that_fails_keeps_the_old_bundle_and_says_so(place: Path, golden: Path) -> None:
    expected = vectors(place)
    with RunningServer(place) as server:
        edit_manifest(place, lambda manifest: manifest.update(dimension=7))
        server.signal(signal.SIGHUP)
        message = server.message("model: not reloaded, the old bundle goes on")
        assert message["level"] == "error"
        assert np.allclose(of(server.call("POST", "/v1/embeddings", {"input": TEXTS}).json()), expected, atol=1e-5)
        seen = len(server.lines)
        shutil.rmtree(place)
        server.signal(signal.SIGHUP)
        server.message("model: not reloaded", after=seen)
        seen = len(server.lines)
        shutil.copytree(golden / "bundle-v1-int8", place)
        server.signal(signal.SIGHUP)
        server.message("model: reloaded", after=seen)
        second = vectors(golden / "bundle-v1-int8")
        assert np.allclose(of(server.call("POST", "/v1/embeddings", {"input": TEXTS}).json()), second, atol=1e-5)
