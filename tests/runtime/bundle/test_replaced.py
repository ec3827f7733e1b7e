"""Test bundles that are replaced while they are opened."""

import ctypes
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from support.bundles import copy_bundle, edit_manifest
from whiten_runtime import BundleError, Encoder, IntegrityError, VectorWhitener
from whiten_runtime.bundle.replaced import ATTEMPTS, identity, unmixed

pytestmark = pytest.mark.slow

Vectors = dict[str, np.ndarray]
RENAME_EXCHANGE, AT_FDCWD = 2, -100


def exchange(a: Path, b: Path) -> None:
    """Give two directories each other's name, at no point leaving one without."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        pytest.skip("needs renameat2 of Linux")
    if libc.renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE):
        pytest.skip(f"this file system does not exchange names: {os.strerror(ctypes.get_errno())}")


@contextmanager
def repeated(action: Callable[[], object], pause: float) -> Iterator[list[int]]:
    """Repeat an action in a thread until the block ends; give the number of times."""
    stop, count = threading.Event(), [0]

    def loop() -> None:
        while not stop.wait(pause):
            action()
            count[0] += 1

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def two(golden: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two bundles whose vectors differ, in two folders."""
    first = copy_bundle(golden / "bundle-v1", tmp_path)
    return first, Path(shutil.copytree(golden / "bundle-v1-int8", tmp_path / "other"))


@pytest.mark.parametrize("pause", [0.003, 0.02, 0.4])
def test_a_bundle_replaced_again_and_again_is_never_blamed_nor_mixed(
    two: tuple[Path, Path], vectors: Vectors, pause: float
) -> None:
    with repeated(lambda: exchange(*two), pause) as count:
        opened = opened_for(two[0], 3, vectors)
    assert count[0] > 4
    assert opened or pause < 0.4


def opened_for(path: Path, seconds: float, vectors: Vectors) -> int:
    """Open a bundle as often as time allows; return how often it was opened. It may give up, but blame no copy."""
    opened, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            encoder = Encoder(path, threads=1)
        except BundleError as error:
            assert f"replaced during each of {ATTEMPTS} attempts" in str(error)
            continue
        with encoder:
            assert np.array_equal(encoder.encode(["a text"]), vectors[encoder.manifest.precision])
            opened += 1
    return opened


@pytest.fixture
def vectors(two: tuple[Path, Path]) -> Vectors:
    """The vectors of both bundles, by precision."""
    found = {}
    for path in two:
        with Encoder(path, threads=1) as encoder:
            found[encoder.manifest.precision] = encoder.encode(["a text"])
    return found


def test_a_link_that_is_set_to_another_bundle_is_followed(
    two: tuple[Path, Path], vectors: Vectors, tmp_path: Path
) -> None:
    """Services switch a link named `current` from one version to the next."""
    link, new = tmp_path / "current", tmp_path / "new"
    link.symlink_to(two[0])
    targets = [0]

    def switch() -> None:
        targets[0] += 1
        new.symlink_to(two[targets[0] % 2])
        new.replace(link)

    with repeated(switch, 0.4):
        assert opened_for(link, 3, vectors)


def test_an_altered_bundle_is_blamed_at_once(two: tuple[Path, Path]) -> None:
    calls = []

    def fail() -> Encoder:
        calls.append(1)
        raise IntegrityError("altered")

    with pytest.raises(IntegrityError, match="altered"):
        unmixed(two[0], fail)
    assert len(calls) == 1


def test_attempts_are_bounded_and_each_is_closed(two: tuple[Path, Path]) -> None:
    events = []

    class Opened:
        def close(self) -> None:
            events.append("closed")

    def open_it() -> Opened:
        events.append("opened")
        exchange(*two)
        return Opened()

    with pytest.raises(BundleError, match=f"replaced during each of {ATTEMPTS} attempts"):
        unmixed(two[0], open_it)
    assert events == ["opened", "closed"] * ATTEMPTS


def test_a_bundle_renamed_away_and_back_has_another_identity(two: tuple[Path, Path]) -> None:
    before = identity(two[0])
    assert identity(two[0]).is_of(before)
    time.sleep(0.02)  # older systems count time in steps of some milliseconds
    (two[0] / "log.txt").write_text("a file")
    exchange(*two)
    exchange(*two)
    assert not identity(two[0]).is_of(before)


def test_files_that_are_written_into_the_folder_do_not_matter(two: tuple[Path, Path]) -> None:
    """Such as a log, or the `Thumbs.db` of a file manager."""
    before = identity(two[0])
    time.sleep(0.02)
    (two[0] / "log.txt").write_text("a file")
    assert identity(two[0]).is_of(before)
    with repeated(lambda: rewrite(two[0] / "log.txt"), 0.002) as count, Encoder(two[0], threads=1) as encoder:
        assert encoder.manifest.precision == "fp32"
    assert count[0]


def rewrite(file: Path) -> None:
    file.unlink()
    file.write_text("another")


def test_a_bundle_replaced_once_opens_as_the_new_one(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from whiten_runtime import text_bundle

    load, done = text_bundle.load_bundle, []

    def slow(*arguments: object) -> object:
        found = load(*arguments)  # type: ignore[arg-type]
        if not done:
            done.append(exchange(*two))
        return found

    monkeypatch.setattr(text_bundle, "load_bundle", slow)
    with Encoder(two[0]) as encoder:
        assert encoder.manifest.precision == "int8"


@pytest.mark.parametrize("ask", [Encoder.verify, Encoder.ranges])
def test_what_is_read_later_is_of_the_same_bundle(two: tuple[Path, Path], ask: Callable[[Encoder], object]) -> None:
    with Encoder(two[0]) as encoder:
        exchange(*two)
        with pytest.raises(IntegrityError, match="replaced or altered since"):
            ask(encoder)


def test_bundles_of_vectors_are_opened_again_too(golden: Path, tmp_path: Path) -> None:
    first = copy_bundle(golden / "bundle-v1-vectors", tmp_path)
    second = Path(shutil.copytree(golden / "bundle-v1-vectors", tmp_path / "other"))
    edit_manifest(second, lambda manifest: manifest.update(name="second"))
    with repeated(lambda: exchange(first, second), 0.4):
        for _ in range(10):
            with VectorWhitener(first) as whitener:
                assert whitener.verify().vectors
