"""Test what adapters store of a bundle, and when they open it."""

import copy
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from support.bundles import copy_bundle
from whiten import BundleError, Encoder, UsageError
from whiten.integrations.bundle_source import BundleSource, stored_name

COMMIT = "5573d4c510264ae636ed209548728403ebc3024c"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of the bundles that are opened from now on."""
    paths: list[Path] = []
    begin = Encoder._open

    def counted(self: Encoder, opening: object) -> None:
        begin(self, opening)  # type: ignore[arg-type]
        paths.append(self.path)

    monkeypatch.setattr(Encoder, "_open", counted)
    return paths


def other_space(bundle: Path, folder: Path) -> Path:
    return copy_bundle(bundle, folder, prompts={"query": "ask: "})


def test_sources_of_one_directory_open_it_once(tiny_bundle: Path, tmp_path: Path, opened: list[Path]) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    sources = [BundleSource(bundle), BundleSource(str(bundle)), BundleSource(bundle, how="so")]
    sources += [copy.deepcopy(sources[0]), pickle.loads(pickle.dumps(sources[0]))]
    assert opened == []
    assert len({id(source.encoder) for source in sources}) == 1
    assert opened == [bundle]


def test_threads_open_one_directory_once(tiny_bundle: Path, tmp_path: Path, opened: list[Path]) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    threads = [threading.Thread(target=lambda: BundleSource(bundle).encoder.encode("a")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [bundle]


def test_a_replaced_or_closed_bundle_is_opened_anew(tiny_bundle: Path, tmp_path: Path, opened: list[Path]) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path / "a")
    first = BundleSource(bundle)
    before = first.encoder.encode_query(["a"])
    shutil.rmtree(bundle)
    other_space(tiny_bundle, tmp_path / "b").rename(bundle)
    second = BundleSource(bundle)
    assert second.encoder is not first.encoder
    np.testing.assert_array_equal(first.encoder.encode_query(["a"]), before)  # who has opened the old one keeps it
    assert np.abs(second.encoder.encode_query(["a"]) - before).max() > 0.01
    second.encoder.close()
    assert BundleSource(bundle).encoder.encode("a").shape == (32,)
    assert opened == [bundle] * 3


def test_a_passed_encoder_is_used_and_opened_alike_elsewhere(tiny_bundle: Path, opened: list[Path]) -> None:
    with Encoder(tiny_bundle, threads=1, max_characters=7) as encoder:
        source = BundleSource(encoder)
        assert source.encoder is encoder
        again = pickle.loads(pickle.dumps(source))
        assert len(opened) == 1
        assert again.encoder._opening.max_characters == 7
        assert again.encoder is not encoder
        assert (again.name, again.space) == (str(tiny_bundle), encoder.space)
        again.encoder.close()


def test_a_stored_source_refuses_another_space_and_says_what_to_do(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path / "a")
    stored = pickle.dumps(BundleSource(bundle, how="do this"))
    space = BundleSource(bundle).space
    shutil.rmtree(bundle)
    with pytest.raises(BundleError, match="does not exist; .*; if it has moved, do this$"):
        pickle.loads(stored).encoder  # noqa: B018
    assert pickle.loads(stored).space == space  # known, though there is no bundle
    assert BundleSource(bundle).space is None
    other = other_space(tiny_bundle, tmp_path / "b")
    other.rename(bundle)
    with pytest.raises(
        UsageError, match=f"but those that are stored are of '{space}'; put the bundle back, .* do this"
    ):
        pickle.loads(stored).encoder  # noqa: B018
    with Encoder(bundle) as encoder, pytest.raises(UsageError, match="gives vectors of the space"):
        BundleSource(encoder, space)


def test_bundles_of_the_hub_are_stored_with_their_commit(tiny_bundle: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    shutil.copytree(tiny_bundle, snapshot)
    assert stored_name(snapshot.with_name("main")) == "hf://org/name@main"
    source = BundleSource(Encoder(snapshot))
    assert source.name == f"hf://org/name@{COMMIT}"
    assert stored_name(tiny_bundle) == str(tiny_bundle)
    assert stored_name(Path("/snapshots")) == "/snapshots"


@pytest.mark.parametrize("bundle", [None, 5, b"bundle", ["bundle"]])
def test_what_is_no_bundle_is_refused(bundle: object) -> None:
    with pytest.raises(UsageError, match="wanted its directory, or an Encoder"):
        BundleSource(bundle)  # type: ignore[arg-type]
