"""Test bundles that are named by a repository of the hub, which here is a server on this machine."""

import errno
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from support.bundles import contents
from support.cli import invoke, ok
from support.hub import READ_ONLY, Hub, commit_of
from whiten import BundleError, Encoder, UsageError, WhitenError
from whiten_runtime.bundle.files import with_own_hash
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.commands.console import whiten
from whiten_runtime.hub import SCHEME, locate_bundle

ID = "org/tiny"
TEXTS = ["A man is eating.", ""]


def test_only_the_files_of_the_bundle_are_downloaded(hub: Hub, content: Mapping[str, bytes], tiny: Encoder) -> None:
    hub.repositories[ID] = content
    with Encoder(ID) as encoder:
        np.testing.assert_array_equal(encoder.encode(TEXTS), tiny.encode(TEXTS))
    assert hub.fetched[0] == MANIFEST_FILE
    listed = set(json.loads(content[MANIFEST_FILE])["files"])
    assert sorted(hub.fetched) == sorted({MANIFEST_FILE, *listed})
    hub.asked.clear()
    commit = commit_of(content)
    assert locate_bundle(ID) == locate_bundle(f"hf://{ID}") == locate_bundle(f"hf://{ID}@{commit}")
    assert locate_bundle(ID, commit).name == commit
    assert hub.asked == []  # a whole snapshot needs no network


def test_a_directory_goes_before_the_hub(hub: Hub, content: Mapping[str, bytes], tiny_bundle: Path) -> None:
    hub.repositories[ID] = content
    Path("org").mkdir()
    Path(ID).symlink_to(tiny_bundle)
    assert locate_bundle(ID) == locate_bundle(Path(ID)) == Path(ID)
    Encoder(ID).close()
    with pytest.raises(UsageError, match="'v1'"):
        Encoder(ID, revision="v1")
    Path(ID).unlink()
    with pytest.raises(BundleError, match=f"hf://{ID}"):
        Encoder(ID)
    Path("org").rmdir()
    with pytest.raises(BundleError):
        Encoder(Path(ID))  # a path is never looked for on the hub
    with pytest.raises(UsageError):
        Encoder(Path(ID), revision="main")
    assert hub.asked == []
    assert locate_bundle(f"hf://{ID}").name == commit_of(content)


def test_a_copy_by_pickle_opens_the_same_snapshot(hub: Hub, content: Mapping[str, bytes], tmp_path: Path) -> None:
    hub.repositories[ID] = content
    with Encoder(ID) as encoder:
        stored, vectors = pickle.dumps(encoder), encoder.encode(TEXTS)
    (tmp_path / "cache" / "models--org--tiny" / "refs" / "main").write_text("0" * 40)  # a newer one was fetched
    hub.asked.clear()
    with pickle.loads(stored) as copy:
        np.testing.assert_array_equal(copy.encode(TEXTS), vectors)
    assert hub.asked == []


def test_revisions(hub: Hub, content: Mapping[str, bytes]) -> None:
    hub.repositories[ID] = content
    hub.branches[ID, "v1"] = {**content, "README.md": b"# Another commit"}
    commit = commit_of(hub.branches[ID, "v1"])
    assert locate_bundle(ID, "v1").name == locate_bundle(f"hf://{ID}@v1").name == commit
    assert locate_bundle(ID).name == commit_of(content)


@pytest.mark.parametrize("revision", ["../../outside", "", "a\nb"])
def test_a_revision_is_never_a_path(hub: Hub, content: Mapping[str, bytes], tmp_path: Path, revision: str) -> None:
    hub.repositories[ID] = content
    locate_bundle(ID)
    (tmp_path / "cache" / "outside").write_text(commit_of(content))
    hub.asked.clear()
    with pytest.raises(UsageError, match="revision") as caught:
        Encoder(ID, revision=revision)
    assert str(caught.value).isprintable()
    assert hub.asked == []


def test_an_interrupted_download_goes_on(
    hub: Hub, content: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[ID] = content
    with monkeypatch.context() as broken:
        broken.setattr("huggingface_hub.file_download.http_get", _break_off)
        with pytest.raises(
            WhitenError, match=rf"or the transfer of '{ID}' broke off \(ConnectionError: reset\); run it"
        ):
            Encoder(ID)
    folder = locate_bundle(ID)
    (folder / "onnx/model.onnx").unlink()  # as after an interruption: the manifest is there, and not all files
    hub.fetched.clear()
    blob = hub.repositories[ID]["onnx/model.onnx"]
    for file in (folder.parents[1] / "blobs").iterdir():
        if file.read_bytes() == blob:
            file.unlink()
    assert locate_bundle(ID) == folder
    assert (folder / "onnx/model.onnx").read_bytes() == blob
    assert set(hub.fetched) == {"onnx/model.onnx"}


def _break_off(*arguments: object, **options: object) -> None:
    raise ConnectionError("reset")


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("nowhere", BundleError, "'nowhere'"),
        ("a/b/c", BundleError, "'a/b/c'"),
        ("org/nothing", UsageError, "'org/nothing' does not exist"),
        ("hf://nothing", UsageError, "ORG/NAME"),
        ("hf://org/tiny@v9", UsageError, "'v9'"),
        ("org/gated", WhitenError, "'org/gated' is gated"),
        ("org/private", UsageError, "'org/private' does not exist"),
        ("org/model", BundleError, "whiten-export org/model"),
        ("org/part", BundleError, "tokenizer.json"),
        ("org/evil", BundleError, "'../../x'"),
    ],
)
def test_errors_of_one_line(
    hub: Hub,
    content: Mapping[str, bytes],
    text: str,
    kind: type[WhitenError],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = {name: text for name, text in content.items() if name != "tokenizer.json"}
    evil = with_own_hash(content[MANIFEST_FILE].replace(b'"tokenizer.json"', b'"../../x"'))
    hub.repositories |= {ID: content, "org/gated": content, "org/private": content, "org/part": part}
    hub.repositories |= {"org/model": {"config.json": b"{}"}, "org/evil": {**content, MANIFEST_FILE: evil}}
    hub.private, hub.gated = {"org/private"}, {"org/gated"}
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(kind, match=named) as caught:
        Encoder(text)
    assert type(caught.value) is kind
    result = invoke(whiten, "embed", text, "x")
    assert (result.exit_code, result.stderr.count("\n")) == (2 if kind is UsageError else 1, 1), result.stderr


def test_a_private_repository_opens_with_the_token(
    hub: Hub, content: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[ID], hub.private = content, {ID}
    monkeypatch.setenv("HF_TOKEN", READ_ONLY)
    assert locate_bundle(ID).name == commit_of(content)


def test_commands_take_repositories(hub: Hub, content: Mapping[str, bytes], tiny_bundle: Path) -> None:
    hub.repositories[ID] = content
    assert f"{ID}: equal to torch" in ok("verify", ID).stderr
    assert ok("info", f"hf://{ID}").stdout == ok("info", tiny_bundle).stdout
    assert ok("embed", ID, "x").stdout == ok("embed", tiny_bundle, "x").stdout


def test_what_is_in_the_cache_is_fetched_anew(
    hub: Hub, content: Mapping[str, bytes], golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.repositories[ID] = content
    old = locate_bundle(ID)
    hub.fetched.clear()
    assert locate_bundle(ID, refresh=True) == old
    assert hub.fetched == []
    hub.branches[ID, "v1"] = content
    other = hub.repositories[ID] = contents(golden / "bundle-v1-int8")
    assert locate_bundle(ID) == old
    assert locate_bundle(f"{SCHEME}{ID}@{commit_of(content)}", refresh=True) == old
    new = locate_bundle(ID, refresh=True)
    assert new.name == commit_of(other)
    assert locate_bundle(ID) == new
    assert locate_bundle(new, refresh=True) == new  # a directory is taken as it is
    hub.repositories[ID] = {**content, "README.md": b"# A third commit"}
    hub.gated.add(ID)
    with pytest.raises(WhitenError, match="is gated"):
        locate_bundle(ID, refresh=True)
    del hub.repositories[ID]
    with pytest.raises(UsageError, match=ID):
        locate_bundle(ID, refresh=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WhitenError, match=f"'{ID}' was not asked for: HF_HUB_OFFLINE is set"):
        locate_bundle(ID, refresh=True)
    assert locate_bundle(ID) == new


def test_a_full_disk_is_none_of_the_hub(
    hub: Hub, content: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hub.repositories[ID] = content
    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    with pytest.raises(WhitenError, match="HF_HOME") as caught:
        locate_bundle(ID)
    assert str(caught.value).startswith(f"{tmp_path / 'cache'}: No space left on device")
