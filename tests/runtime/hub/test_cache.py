"""Test what the hub's cache may hold: damaged files, branches that name nothing, and commits that are whole."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from support.bundles import contents
from support.cli import MAIN, ok, python, refused
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


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, lengthen, empty])
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
        remedies = [f"delete {(folder / name).resolve()}, and open the bundle by its name where the" for name in names]
        assert any(remedy in error for remedy in remedies)
        assert error.endswith("HF_HUB_OFFLINE is set")
    assert locate_bundle(ID, refresh=refresh) == folder
    assert sorted(hub.fetched) == sorted(names)
    assert (folder / names[0]).read_bytes() == content[names[0]]
    with Encoder(ID) as encoder:
        np.testing.assert_array_equal(encoder.encode(["a"]), tiny.encode(["a"]))


def test_a_file_of_other_bytes_is_fetched_again_when_it_was_deleted(hub: Hub, folder: Path) -> None:
    blob = (folder / "tokenizer.json").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b" ")
    for name in (ID, folder):
        with pytest.raises(
            IntegrityError, match=f"the file was altered: delete {blob}, and open the bundle by its name"
        ):
            Encoder(name)
    blob.unlink()
    with offline(), pytest.raises(WhitenError, match=r"is not whole in the hub's cache, and HF_HUB_OFFLINE is set"):
        Encoder(ID)
    Encoder(ID).close()
    assert hub.fetched == ["tokenizer.json"]


def test_a_file_that_is_wrong_on_the_hub_is_told(hub: Hub, content: Mapping[str, bytes]) -> None:
    hub.repositories[ID] = {**content, "tokenizer.json": b"{}"}
    for _ in range(2):
        with pytest.raises(BundleError, match=f"'{ID}': tokenizer.json has another size than its manifest says; push"):
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
def test_the_one_whole_bundle_opens_and_is_named(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder)
    with offline():
        with pytest.warns(
            UserWarning, match=f"names no bundle in .*, hf://{ID}@{folder.name}: write that, or fetch the"
        ):
            assert locate_bundle(ID) == folder
        assert locate_bundle(f"hf://{ID}@{folder.name}") == folder
        with pytest.raises(WhitenError, match="is not whole in the hub's cache"):
            locate_bundle(ID, "v1")


def test_a_command_warns_in_one_line(folder: Path) -> None:
    move(folder)
    environment = os.environ | {"HF_HUB_CACHE": str(folder.parents[2]), "HF_HUB_OFFLINE": "1"}
    done = python(MAIN, "info", ID, env=environment)
    assert done.returncode == 0, done.stderr
    line = (
        f"warning: branch main of '{ID}' names no bundle in the hub's cache; the only one there was opened, hf://{ID}@"
    )
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_a_restart_changes_no_vectors_after_another_program_moved_the_branch(
    hub: Hub, folder: Path, golden: Path
) -> None:
    hub.repositories[ID] = contents(golden / "bundle-v1-int8")
    move(folder, commit_of(hub.repositories[ID]))
    with pytest.warns(UserWarning, match=folder.name):
        assert locate_bundle(ID) == folder
    assert hub.asked == []
    new = locate_bundle(ID, refresh=True)
    assert new.name == commit_of(hub.repositories[ID])
    assert locate_bundle(ID) == new  # without a warning, which tests take for an error


def test_without_a_branch_the_hub_is_asked(hub: Hub, folder: Path) -> None:
    remove_refs(folder)
    assert locate_bundle(ID) == folder
    assert hub.fetched == []
    with offline():
        assert locate_bundle(ID) == folder


@pytest.mark.parametrize("end", ["\n", "\r\n", " "])
def test_ends_of_lines_in_a_branch(folder: Path, end: str) -> None:
    (folder.parents[1] / "refs" / "main").write_bytes((folder.name + end).encode())
    with offline():
        assert locate_bundle(ID) == folder


def test_several_whole_bundles_are_named(hub: Hub, folder: Path, golden: Path) -> None:
    hub.branches[ID, "v1"] = contents(golden / "bundle-v1")
    hub.repositories[ID] = contents(golden / "bundle-v1-int8")
    tagged, newer = locate_bundle(ID, "v1"), locate_bundle(ID, refresh=True)
    move(folder)
    first, second = sorted([folder.name, newer.name])
    with offline():
        error = refused("info", ID, code=1)
        assert f"has 2 bundles of '{ID}', and its branch main names none of them; " in error
        assert f"write hf://{ID}@{first} or hf://{ID}@{second}, or fetch the newest" in error
        assert locate_bundle(ID, "v1") == tagged
    ok("info", f"hf://{ID}@{second}")


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
