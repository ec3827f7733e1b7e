"""Test uploads to a hub, which here is a server on this machine that the real client talks to."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import contents, copy_bundle, rewrite_file
from support.cli import MAIN, invoke, ok, python, refused
from support.hub import READ_ONLY, TOKEN, Hub, commit_of
from whiten import Encoder
from whiten_runtime import hub as uploading
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.commands.console import whiten

ID = "org/new"


def writes(hub: Hub) -> list[str]:
    """Return the requests that would change a repository."""
    return [line for line in hub.asked if line.startswith(("POST /api/repos", "POST /api/models", "PUT"))]


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of a bundle, with files that are no part of it."""
    copy = copy_bundle(tiny_bundle, tmp_path)
    (copy / "notes.txt").write_text("private")
    (copy / ".git").mkdir()
    return copy


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-int8", "bundle-v1-vectors"])
def test_what_was_uploaded_opens_from_an_empty_cache(hub: Hub, golden: Path, name: str) -> None:
    local, before = golden / name, contents(golden / name)
    result = ok("push", local, ID)
    assert result.stdout == f"{hub.url}/{ID}/commit/{commit_of(hub.repositories[ID])}\n"
    assert f"uploaded {len(before)} files" in result.stderr
    assert {**before, ".gitattributes": b""} == hub.repositories[ID]
    assert contents(local) == before
    assert f"{ID}: equal to" in ok("verify", ID).stderr
    if name != "bundle-v1-vectors":
        with Encoder(ID) as there, Encoder(local) as here:
            np.testing.assert_array_equal(there.encode(["x", "a longer text"]), here.encode(["x", "a longer text"]))


def test_only_the_files_of_the_bundle_are_uploaded(hub: Hub, bundle: Path) -> None:
    (bundle / "README.md").write_text("---\nlicense: mit\n---\n# Card\n")
    ok("push", bundle, f"hf://{ID}")
    listed = json.loads((bundle / MANIFEST_FILE).read_text())["files"]
    assert set(hub.repositories[ID]) == {*listed, MANIFEST_FILE, "README.md", ".gitattributes"}
    assert sum(line.endswith("/commit/main") for line in hub.asked) == 1  # all in one commit


def test_an_older_bundle_is_replaced(hub: Hub, bundle: Path) -> None:
    older = copy_bundle(bundle, bundle.parent / "older")
    rewrite_file(older, "onnx/model.onnx_data", b"old")
    ok("push", older, ID)
    hub.repositories[ID] = {**hub.repositories[ID], "LICENSE": b"mine", "vocab.txt": b"mine too"}
    before = contents(bundle.parent)
    result = ok("push", bundle, ID)
    assert "removed files of an older bundle: onnx/model.onnx_data\n" in result.stderr
    assert "onnx/model.onnx_data" not in hub.repositories[ID]
    assert hub.repositories[ID]["LICENSE"] == b"mine"
    assert hub.repositories[ID]["vocab.txt"] == b"mine too"
    assert contents(bundle.parent) == before  # nothing is written on this machine


@pytest.mark.parametrize("name", [ID, f"{ID}@v2"])
@pytest.mark.parametrize("there", [False, True])
def test_a_push_of_somebody_else_meanwhile_is_kept(
    hub: Hub, bundle: Path, name: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is removed was decided by what was there before."""
    if there:
        ok("push", bundle, name)
    function = uploading._stale_files
    others = {"model.safetensors": b"trained"}

    def push_meanwhile(*arguments: Any) -> Any:
        stale = function(*arguments)
        hub.repositories[ID] = {**hub.repositories[ID], **others}
        if (ID, "v2") in hub.branches:
            hub.branches[ID, "v2"] = {**hub.branches[ID, "v2"], **others}
        return stale

    monkeypatch.setattr(uploading, "_stale_files", push_meanwhile)
    if name == ID or there:
        error = refused("push", bundle, name, code=1)
        assert error == f"error: '{ID}' was changed meanwhile, and nothing was uploaded; push again"
        assert hub.repositories[ID].keys() >= others.keys()
    else:  # a new branch begins with the commit that was looked at
        ok("push", bundle, name)
        assert "model.safetensors" not in hub.branches[ID, "v2"]


def test_a_bundle_that_is_replaced_meanwhile_is_not_uploaded(
    hub: Hub, bundle: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = uploading._stale_files

    def replace(*arguments: Any) -> Any:
        bundle.rename(bundle.with_name("before"))
        copy_bundle(golden / "bundle-v1-int8", bundle.parent)
        return function(*arguments)

    monkeypatch.setattr(uploading, "_stale_files", replace)
    assert "replaced or altered since the bundle was opened" in refused("push", bundle, ID, code=1)
    assert set(hub.repositories[ID]) == {".gitattributes"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling.py", "model.ORT"])
def test_weights_and_code_of_other_programs_are_not_mixed_with_a_bundle(hub: Hub, bundle: Path, name: str) -> None:
    """The whole repository, fetched by another program, would be refused as a bundle."""
    ok("push", bundle, ID)
    hub.repositories[ID] = {**hub.repositories[ID], name: b"mine"}
    assert f"'{ID}' holds {name}, which no bundle there lists" in refused("push", bundle, ID)
    assert hub.repositories[ID][name] == b"mine"


OTHERS = {"model.safetensors": b"trained", "2_Dense/model.safetensors": b"trained too"}


@pytest.mark.parametrize("manifest", [None, b"{", b'{"format_version": 9}'])
def test_weights_of_other_models_are_left_alone(hub: Hub, bundle: Path, manifest: bytes | None) -> None:
    hub.repositories[ID] = before = OTHERS if manifest is None else {**OTHERS, MANIFEST_FILE: manifest}
    message = (
        "2_Dense/model.safetensors and no whiten.json: it is another model's repository; choose a new name"
        if manifest is None
        else "2_Dense/model.safetensors, model.safetensors, which no bundle there lists, and other programs would take "
        "for the bundle's; move them to another repository, or choose another name"
    )
    for name in (ID, f"{ID}@v2"):
        result = invoke(whiten, "push", bundle, name)
        assert (result.exit_code, result.stderr) == (2, f"error: '{ID}' holds {message}\n")
    assert hub.repositories[ID] == before
    assert writes(hub) == []  # no branch is left behind


def test_a_broken_bundle_is_replaced(hub: Hub, bundle: Path, content: Mapping[str, bytes]) -> None:
    there = {name: data for name, data in content.items() if name != "other/model.safetensors"}
    hub.repositories[ID] = there | {MANIFEST_FILE: b"{"}
    ok("push", bundle, ID)
    Encoder(ID).close()


def test_a_branch(hub: Hub, bundle: Path) -> None:
    ok("push", bundle, f"{ID}@v2")
    assert set(hub.repositories[ID]) == {".gitattributes"}
    with Encoder(f"hf://{ID}@v2") as encoder:
        assert encoder.manifest.name
    assert invoke(whiten, "info", ID).stderr.endswith(f"is not a bundle: export it with whiten-export {ID}\n")


def test_private(hub: Hub, bundle: Path) -> None:
    hub.repositories["org/public"] = {}
    ok("push", bundle, ID, "--private")
    assert hub.private == {ID}
    assert "'org/public' is public; choose another name" in refused("push", bundle, "org/public", "--private")
    error = refused("push", bundle, "org/public@mine", "--private")
    assert "'org/public' is public; choose another name" in error
    assert hub.repositories["org/public"] == {}
    assert ("org/public", "mine") not in hub.branches


def test_a_branch_is_looked_at_by_itself(hub: Hub, bundle: Path) -> None:
    """Weights in the main branch do not matter to a branch without them."""
    hub.repositories[ID] = {"model.safetensors": b"weights"}
    hub.branches[ID, "mine"] = {".gitattributes": b""}
    ok("push", bundle, f"{ID}@mine")
    Encoder(ID, revision="mine").close()
    assert hub.repositories[ID] == {"model.safetensors": b"weights"}


def test_an_altered_bundle_is_not_uploaded(hub: Hub, bundle: Path) -> None:
    content = (bundle / "tokenizer.json").read_bytes()
    (bundle / "tokenizer.json").write_bytes(content[:-1] + b" ")
    error = refused("push", bundle, ID, code=1)
    assert "SHA-256 differs" in error
    assert hub.asked == []


@pytest.mark.parametrize(
    ("token", "arguments", "code", "message"),
    [
        (None, (ID,), 1, f"there is no token to upload to '{ID}' with; run hf auth login, or set HF_TOKEN"),
        (READ_ONLY, (ID,), 1, "check your token (hf auth login)"),
        ("wrong", (ID,), 1, "check your token (hf auth login)"),
        ("", ("name",), 2, "'name' does not name a repository of the hub; wanted ORG/NAME"),
        ("", ("org/old@",), 2, "'org/old@' does not name a repository of the hub"),
        ("", ("org/old@../x",), 2, "revision is '../x'; wanted the name of a branch or tag, or a commit"),
        ("", ("hf://org/old@../x",), 2, "revision is '../x'; wanted the name of a branch or tag, or a commit"),
    ],
)
def test_errors_of_one_line(
    hub: Hub,
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    hub.repositories["org/old"] = {}
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    elif token:
        monkeypatch.setenv("HF_TOKEN", token)
    assert message in refused("push", bundle, *arguments, code=code)
    assert hub.repositories == {"org/old": {}}


def test_what_is_no_bundle(hub: Hub, content: Mapping[str, bytes], tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = content
    for name, message in (("nowhere", "does not exist"), ("org/tiny", "does not exist"), (tmp_path, "is not a whiten")):
        error = refused("push", name, ID, code=1)
        assert message in error
        assert hub.asked == []


def test_a_hub_that_is_not_there(hub: Hub, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert f"HF_HUB_OFFLINE is set; unset it to upload to '{ID}'" in invoke(whiten, "push", bundle, ID).stderr
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert f"'{ID}' is unchanged: the hub is out of reach: 127.0.0.1:9 does not answer" in refused(
        "push", bundle, ID, code=1
    )


@pytest.mark.slow
def test_other_processes_use_the_hub_by_their_environment(hub: Hub, golden: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    pushed = python(MAIN, "push", golden / "bundle-v1-int8", ID, env=environment)
    assert (pushed.returncode, pushed.stdout) == (0, f"{hub.url}/{ID}/commit/{commit_of(hub.repositories[ID])}\n"), (
        pushed
    )
    verified = python(MAIN, "verify", f"hf://{ID}", env=environment)
    assert (verified.returncode, f"hf://{ID}: equal to" in verified.stderr) == (0, True), verified
    assert (tmp_path / "home" / "hub" / "models--org--new").is_dir()
