"""Test what the hub's cache may hold: damaged files, and branches that name nothing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from support.bundles import contents
from support.cli import refused
from support.hub import Hub, commit_of
from whiten import BundleError, Encoder, IntegrityError, WhitenError
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.hub import locate_bundle

ID = "org/tiny"
CARD = "config.json"


@contextmanager
def offline() -> Iterator[None]:
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


@pytest.fixture
def folder(hub: Hub, content: Mapping[str, bytes]) -> Path:
    """The directory of a whole bundle in the cache, after which nothing was fetched."""
    hub.repositories[ID] = content
    folder = locate_bundle(ID)
    hub.asked.clear()
    hub.fetched.clear()
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", [cut, lengthen])
@pytest.mark.parametrize("names", [("onnx/model.onnx",), ("tokenizer.json", "probes.json"), (MANIFEST_FILE,)], ids=str)
@pytest.mark.parametrize("refresh", [False, True])
def test_a_file_of_another_size_is_fetched_again(
    hub: Hub,
    content: Mapping[str, bytes],
    folder: Path,
    names: tuple[str, ...],
    damage: Callable[[Path], None],
    refresh: bool,
    tiny: Encoder,
) -> None:
    for name in names:
        damage((folder / name).resolve())
    with offline():
        error = refused("embed", ID, "a text", code=1)
        assert all(name in error for name in names)
        assert "missing or damaged: " in error
        assert "HF_HUB_OFFLINE is set" in error
    assert locate_bundle(ID, refresh=refresh) == folder
    assert sorted(hub.fetched) == sorted(names)
    assert (folder / names[0]).read_bytes() == content[names[0]]
    with Encoder(ID) as encoder:
        np.testing.assert_array_equal(encoder.encode(["a"]), tiny.encode(["a"]))


def test_a_file_of_other_bytes_is_fetched_again_when_it_was_deleted(hub: Hub, folder: Path) -> None:
    blob = (folder / "tokenizer.json").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b" ")
    for name in (ID, folder):
        with pytest.raises(IntegrityError, match=f"delete {blob}"):
            Encoder(name)
    blob.unlink()
    with (
        offline(),
        pytest.raises(WhitenError, match=r"cache \(missing or damaged: tokenizer.json\), and HF_HUB_OFFLINE"),
    ):
        Encoder(ID)
    Encoder(ID).close()
    assert hub.fetched == ["tokenizer.json"]


def test_a_file_that_is_wrong_on_the_hub_is_told(hub: Hub, content: Mapping[str, bytes]) -> None:
    hub.repositories[ID] = {**content, "tokenizer.json": b"{}"}
    for _ in range(2):
        with pytest.raises(BundleError, match=f"'{ID}': tokenizer.json"):
            locate_bundle(ID)


def test_files_of_other_programs_may_have_another_size(hub: Hub, content: Mapping[str, bytes]) -> None:
    hub.repositories[ID] = {**content, CARD: content[CARD] + b" "}
    with offline_after(lambda: locate_bundle(ID)):
        Encoder(ID).close()


@contextmanager
def offline_after(action: Callable[[], object]) -> Iterator[None]:
    action()
    with offline():
        yield


def move(folder: Path, commit: str = "f" * 40) -> None:
    """Fetch one file of a newer commit, as AutoConfig.from_pretrained does."""
    other = folder.with_name(commit)
    other.mkdir()
    (other / CARD).write_text("{}")
    (folder.parents[1] / "refs" / "main").write_text(commit)


def remove_refs(folder: Path) -> None:
    (folder.parents[1] / "refs" / "main").unlink()
    (folder.parents[1] / "refs").rmdir()


def name_nothing(folder: Path) -> None:
    (folder.parents[1] / "refs" / "main").write_text("")


def name_a_commit_that_is_gone(folder: Path) -> None:
    (folder.parents[1] / "refs" / "main").write_text("e" * 40)


@pytest.mark.parametrize("change", [move, remove_refs, name_nothing, name_a_commit_that_is_gone])
def test_a_branch_that_names_no_bundle_is_asked_for(
    hub: Hub, folder: Path, golden: Path, change: Callable[[Path], None]
) -> None:
    """The commit still opens by its name, also offline; the branch is the hub's of today."""
    hub.repositories[ID] = contents(golden / "bundle-v1-int8")
    change(folder)
    with offline():
        assert locate_bundle(f"hf://{ID}@{folder.name}") == folder
        with pytest.raises(WhitenError, match="HF_HUB_OFFLINE"):
            locate_bundle(ID)
    new = locate_bundle(ID)
    assert new.name == commit_of(hub.repositories[ID])
    with offline():
        assert locate_bundle(ID) == new


def test_without_a_branch_the_hub_is_asked(hub: Hub, folder: Path) -> None:
    remove_refs(folder)
    assert locate_bundle(ID) == folder
    assert hub.fetched == []
    with offline():
        assert locate_bundle(ID) == folder


def test_a_download_that_breaks_off_leaves_the_branch(
    hub: Hub, folder: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[ID] = contents(golden / "bundle-v1-int8")
    hub.gated_files = {"onnx/model.onnx"}
    with pytest.raises(WhitenError):
        locate_bundle(ID, refresh=True)
    assert MANIFEST_FILE in hub.fetched
    assert locate_bundle(ID) == folder
    hub.gated_files = set()
    assert locate_bundle(ID, refresh=True).name == commit_of(hub.repositories[ID])
