"""SIGHUP: bundles that were replaced are opened, proven and swapped, and no request sees two."""

import json
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from support.bundles import contents, edit_manifest
from support.hub import Hub
from support.server import Load, RunningServer, until
from whiten import Encoder
from whiten_runtime.hub import locate_bundle

pytestmark = pytest.mark.slow

TEXTS = [f"Sentence number {number} is {'very ' * (number % 7)}short." for number in range(12)]


@pytest.fixture
def place(golden: Path, tmp_path: Path) -> Path:
    """A bundle of its own, to be replaced."""
    shutil.copytree(golden / "bundle-v1", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def hub_variables(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Variables of a process that asks the hub of this test."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }


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
    with RunningServer(place, "--drain", 0, "--log", "off") as server:
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


def test_names_of_one_bundle_share_it_and_are_reloaded_together(place: Path, golden: Path) -> None:
    bodies = [{"input": TEXTS, "model": name} for name in ("a", "b", "c")]

    def answers(server: RunningServer) -> list[np.ndarray]:
        return [of(server.call("POST", "/v1/embeddings", body).json()) for body in bodies]

    link = place.with_name("link")
    link.symlink_to(place)
    with RunningServer(f"a={place}", f"c={link}", f"b={place.parent}/./model", "--drain", 0) as server:
        assert [one["id"] for one in server.call("GET", "/v1/models").json()["data"]] == ["a", "c", "b"]
        first, same, other = answers(server)
        assert np.array_equal(first, same)
        assert np.array_equal(first, other)
        queues = re.findall(r'whiten_model_queue_tokens{model="(.)"}', server.call("GET", "/metrics").text)
        assert queues == ["a", "c"]  # a and b have one queue
        swap(place, golden / "bundle-v1-int8")
        server.signal(signal.SIGHUP)
        for name in "abc":
            server.message(f"{name}: reloaded")
        want = vectors(golden / "bundle-v1-int8")
        assert all(np.allclose(got, want, atol=1e-5) for got in answers(server))


class Held(dict):
    """Repositories of a hub that answers when it may."""

    def __init__(self, repositories: dict) -> None:
        super().__init__(repositories)
        self.asked, self.go = threading.Event(), threading.Event()

    def __contains__(self, name: object) -> bool:
        self.asked.set()
        assert self.go.wait(60)
        return super().__contains__(name)


def test_a_signal_during_a_reload_has_one_more(hub: Hub, golden: Path, hub_variables: dict[str, str]) -> None:
    """Whatever was replaced before the last SIGHUP is served."""
    hub.repositories["org/model"] = contents(golden / "bundle-v1")
    with RunningServer("hf://org/model", "--drain", 0, variables=hub_variables) as server:
        hub.repositories = held = Held(hub.repositories)
        server.signal(signal.SIGHUP)
        assert held.asked.wait(60)
        for _ in range(2):
            server.signal(signal.SIGHUP)
            assert server.call("GET", "/live").status_code == 200  # it has the signal
        held.go.set()
        until(lambda: reloads(server) == 2)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert reloads(server) == 2


def reloads(server: RunningServer) -> int:
    messages = [json.loads(line) for line in server.lines]
    return sum((one.get("message"), one.get("model")) == ("model: unchanged", "model") for one in messages)


def test_a_repository_of_the_hub_is_asked_for_its_newest_revision(
    hub: Hub, golden: Path, hub_variables: dict[str, str]
) -> None:
    first, second = vectors(golden / "bundle-v1"), vectors(golden / "bundle-v1-int8")
    hub.repositories["org/model"] = contents(golden / "bundle-v1")
    with RunningServer("hf://org/model", "--drain", 0, variables=hub_variables) as server:

        def served() -> np.ndarray:
            return of(server.call("POST", "/v1/embeddings", {"input": TEXTS}).json())

        def hang_up(said: str) -> dict:
            seen = len(server.lines)
            server.signal(signal.SIGHUP)
            return server.message(said, after=seen)

        assert np.allclose(served(), first, atol=1e-5)
        hang_up("model: unchanged")
        hub.repositories["org/model"] = contents(golden / "bundle-v1-int8")
        hang_up("model: reloaded")
        assert np.allclose(served(), second, atol=1e-5)
        hub.gated.add("org/model")
        hub.repositories["org/model"] = {**contents(golden / "bundle-v1"), "README.md": b"# A third commit"}
        assert hang_up("model: the hub's cache answers")["level"] == "warning"
        server.message("model: unchanged")
        assert np.allclose(served(), second, atol=1e-5)


def test_a_hub_that_is_out_of_reach_leaves_what_is_in_its_cache(
    hub: Hub, golden: Path, hub_variables: dict[str, str]
) -> None:
    hub.repositories["org/model"] = contents(golden / "bundle-v1")
    locate_bundle("hf://org/model")
    with RunningServer("org/model", "--drain", 0, variables=hub_variables | {"HF_HUB_OFFLINE": "1"}) as server:
        server.signal(signal.SIGHUP)
        server.message("model: the hub's cache answers")
        server.message("model: unchanged")
        hub.repositories["org/model"] = contents(golden / "bundle-v1-int8")
        locate_bundle("hf://org/model", refresh=True)  # as a machine that fills a shared cache
        server.signal(signal.SIGHUP)
        server.message("model: reloaded")
        found = of(server.call("POST", "/v1/embeddings", {"input": TEXTS}).json())
        assert np.allclose(found, vectors(golden / "bundle-v1-int8"), atol=1e-5)


def test_a_reload_that_fails_keeps_the_old_bundle(place: Path, golden: Path) -> None:
    steps = (
        (lambda: edit_manifest(place, lambda manifest: manifest.update(dimension=7)), "model: not reloaded"),
        (lambda: shutil.rmtree(place), "model: not reloaded"),
        (lambda: shutil.copytree(golden / "bundle-v1-int8", place), "model: reloaded"),
    )
    first, second = vectors(place), vectors(golden / "bundle-v1-int8")
    with RunningServer(place) as server:
        for change, message in steps:
            seen = len(server.lines)
            change()
            server.signal(signal.SIGHUP)
            server.message(message, after=seen)
            found = of(server.call("POST", "/v1/embeddings", {"input": TEXTS}).json())
            assert np.allclose(found, second if message == "model: reloaded" else first, atol=1e-5)


def test_a_reload_that_changes_the_space_warns(place: Path, golden: Path) -> None:
    before = Encoder(place).space
    with RunningServer(place) as server:
        for name, changes in (("first", True), ("second", False)):
            seen = len(server.lines)
            swap(place, golden / "bundle-v1-int8")
            edit_manifest(place, lambda manifest: manifest.update(name=name))  # noqa: B023
            after = Encoder(place).space
            assert (after != before) == changes
            server.signal(signal.SIGHUP)
            server.message("model: reloaded", after=seen)
            assert any(before in line and after in line for line in server.lines[seen:]) == changes
            before = after
