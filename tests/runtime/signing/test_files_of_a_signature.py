"""What was signed is what is opened, and nothing else lies in the folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("model_signing", reason="needs whiten[sign]")

import whiten as whiten_package
from support.cli import invoke, ok, refused
from support.keys import KeyPair
from whiten import Encoder
from whiten_runtime import signing
from whiten_runtime.bundle.files import sha256_of
from whiten_runtime.commands import verify as command
from whiten_runtime.commands.main import whiten
from whiten_runtime.errors import BundleError, SignatureError, UsageError
from whiten_runtime.signing import Signature, sign_bundle, verify_signature


def replace_with(golden: Path, name: str, bundle: Path) -> None:
    """Put another bundle in the place of one, and its signature beside it, which is not its own."""
    bundle.rename(bundle.with_name("old"))
    shutil.copytree(golden / name, bundle)


def test_a_bundle_that_was_replaced_after_its_signature_was_checked_is_refused(
    signed: Path, keys: KeyPair, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = command.verify_signature

    def then_replaced(bundle: str, key: Path) -> Signature:
        found = check(bundle, key)
        replace_with(golden, "bundle-v1-int8", signed)
        return found

    monkeypatch.setattr(command, "verify_signature", then_replaced)
    result = invoke(whiten, "verify", signed, "--public-key", keys.public)
    assert result.exit_code == 1
    assert "replaced after its signature was checked" in result.stderr
    assert "signed by" not in result.stderr


def test_callers_of_python_check_what_they_opened(signed: Path, keys: KeyPair, golden: Path) -> None:
    signature = whiten_package.verify_signature(signed, key=keys.public)
    with Encoder(signed) as encoder:
        signature.check(encoder)
    with Encoder(signed, verify_hashes=False) as encoder, pytest.raises(UsageError, match="verify_hashes=False"):
        signature.check(encoder)
    replace_with(golden, "bundle-v1-int8", signed)
    with Encoder(signed) as encoder, pytest.raises(SignatureError, match="is not the bundle that was signed with key"):
        signature.check(encoder)


def test_a_signature_is_checked_as_it_was_read(signed: Path, keys: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    read = signing._read

    def then_replaced(root: Path, file: Path) -> bytes:
        content = read(root, file)
        file.write_bytes(b"{}")
        return content

    monkeypatch.setattr(signing, "_read", then_replaced)
    assert verify_signature(signed, keys.public).sha256 == sha256_of([signed / "whiten.json"])


PLANTED = [
    *("adapter_config.json", "added_tokens.json", "vocab.txt", "chat_template.jinja", "2_Dense/config.json"),
    *("onnx/config.json", "sentence_roberta_config.json", "modules.JSON", "sub/.cache/x.json", "sub/.gitignore"),
]


@pytest.mark.parametrize("name", PLANTED)
def test_files_that_nobody_signed_are_refused(name: str, signed: Path, keys: KeyPair) -> None:
    (signed / name).parent.mkdir(parents=True, exist_ok=True)
    (signed / name).write_text("{}")
    ok("verify", signed)
    assert f"does not cover {name};" in refused("verify", signed, "--public-key", keys.public, code=1)


def test_a_link_to_a_folder_is_refused(signed: Path, keys: KeyPair, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (signed / "2_Dense").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SignatureError, match="does not cover 2_Dense;"):
        verify_signature(signed, key=keys.public)


@pytest.mark.parametrize("name", ["README.md", ".gitattributes", ".git/hooks/x", ".cache/huggingface/x.lock"])
def test_files_of_the_hub_and_of_git_may_be_there(name: str, signed: Path, keys: KeyPair) -> None:
    (signed / name).parent.mkdir(parents=True, exist_ok=True)
    (signed / name).write_text("anything")
    verify_signature(signed, key=keys.public)


UNFINISHED = ".model.sig.partial-0123abcd"


def test_what_a_killed_signer_left_does_no_harm_and_is_deleted(bundle: Path, keys: KeyPair) -> None:
    (bundle / UNFINISHED).write_bytes(b'{"dsse')
    ok("sign", bundle, "--key", keys.private)
    assert not (bundle / UNFINISHED).exists()
    ok("verify", bundle, "--public-key", keys.public)


def test_a_folder_with_other_files_is_not_signed(bundle: Path, keys: KeyPair) -> None:
    names = [f"{number}.txt" for number in range(7)]
    for name in names:
        (bundle / name).write_text("notes")
    with pytest.raises(BundleError, match=r"holds 0\.txt, 1\.txt, 2\.txt, 3\.txt, 4\.txt and 2 more, which whiten"):
        sign_bundle(bundle, keys.private)
    assert not (bundle / "model.sig").exists()


def put_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
@pytest.mark.parametrize("name", ["model.sig", "probes.json", "config.json"])
def test_a_pipe_is_not_waited_for(name: str, signed: Path, keys: KeyPair) -> None:
    put_pipe(signed / name)
    with pytest.raises(SignatureError, match=name):
        verify_signature(signed, key=keys.public)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
@pytest.mark.parametrize("use", [sign_bundle, verify_signature])
def test_a_key_that_is_a_pipe_is_refused(use: Callable[..., object], signed: Path, tmp_path: Path) -> None:
    put_pipe(tmp_path / "pipe.pem")
    with pytest.raises(UsageError, match=r"pipe\.pem: is no file"):
        use(signed, tmp_path / "pipe.pem")
