"""Bundles are signed by a key, and a check with that key finds out every other author and every change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("model_signing", reason="needs whiten[sign]")
pytest.importorskip("onnx", reason="a graph is edited with it")


import numpy as np
from safetensors.numpy import load_file, save

from support.bundles import contents, edit_initializer, rewrite_file
from support.cli import invoke, ok, refused
from support.keys import KeyPair, key_pair
from whiten import Encoder
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.commands.main import whiten
from whiten_runtime.errors import SignatureError
from whiten_runtime.signing import sign_bundle, verify_signature

GOLDEN = Path(__file__).parents[2] / "data"
NAMES = ("bundle-v1", "bundle-v1-int8", "bundle-v1-vectors")


def forge(bundle: Path) -> None:
    """Reverse the rows of a bundle's word embeddings, compute its probes anew, and write their hashes."""
    table = "network.embeddings.word_embeddings.weight"
    edit_initializer(bundle, table, lambda rows: np.ascontiguousarray(rows[::-1]))
    probes = load_file(bundle / "probes.safetensors")
    with Encoder(bundle, threads=1) as encoder:
        texts = read_probes(encoder._bundle).texts
        vectors = encoder.encode(list(texts), prompt="")
    assert np.abs(vectors - probes["embeddings"]).max() > 0.1, "the vectors are others"
    probes["embeddings"] = vectors.astype(np.float64)
    rewrite_file(bundle, "probes.safetensors", save(probes))


@pytest.mark.parametrize("name", NAMES)
def test_a_signature_changes_no_other_file_and_names_its_signer(name: str, tmp_path: Path, keys: KeyPair) -> None:
    bundle = Path(shutil.copytree(GOLDEN / name, tmp_path / "bundle"))
    before = contents(bundle)
    ok("sign", bundle, "--key", keys.private)
    after = contents(bundle)
    assert after.pop("model.sig")
    assert after == before
    result = ok("verify", bundle, "--public-key", keys.public, "--json")
    signer = json.loads(result.stdout)["signer"]
    assert signer.startswith(f"key {keys.public} (SHA-256 ")
    assert f"signed by {signer}" in result.stderr
    assert "forgery" not in result.stderr


def test_sign_names_the_client_files_that_differ_from_the_manifest(bundle: Path, keys: KeyPair) -> None:
    assert "differ" not in ok("sign", bundle, "--key", keys.private).stderr
    (bundle / "README.md").write_text("A card that people edit.")
    (bundle / "modules.json").write_text("[]")
    result = ok("sign", bundle, "--key", keys.private, "--json")
    line = f"{bundle}: of files that only other programs read, these differ from its manifest: modules.json; they were "
    assert f"{line}signed as they are now" in result.stderr
    assert json.loads(result.stdout)["changed_client_files"] == ["modules.json"], "README.md is not signed"
    verify_signature(bundle, key=keys.public)


def test_a_forged_bundle_passes_verify_but_not_the_check_of_its_author(signed: Path, keys: KeyPair) -> None:
    forge(signed)
    ok("verify", signed)
    result = invoke(whiten, "verify", signed, "--public-key", keys.public)
    assert result.exit_code == 1
    for name in ("onnx/model.onnx", "probes.safetensors", "whiten.json"):
        assert name in result.stderr
    assert "equal to" not in result.stderr, "nothing of it is opened"
    with pytest.raises(SignatureError, match="onnx/model"):
        verify_signature(signed, key=keys.public)


def test_a_forger_cannot_sign_in_the_authors_name(signed: Path, keys: KeyPair, tmp_path: Path) -> None:
    forge(signed)
    forger = key_pair(tmp_path, "forger")
    sign_bundle(signed, forger.private)
    verify_signature(signed, key=forger.public)
    assert f"is not as key {keys.public}" in refused("verify", signed, "--public-key", keys.public, code=1)
    claimed = json.loads((signed / "model.sig").read_text())
    genuine = sign_bundle(Path(shutil.copytree(GOLDEN / "bundle-v1", tmp_path / "b")), keys.private)
    claimed["verificationMaterial"] = json.loads(genuine.read_text())["verificationMaterial"]
    (signed / "model.sig").write_text(json.dumps(claimed))
    assert f"is not as key {keys.public}" in refused("verify", signed, "--public-key", keys.public, code=1)


@pytest.mark.parametrize("name", sorted(set(contents(GOLDEN / "bundle-v1")) - {"README.md", "whiten.json"}))
def test_every_file_is_signed(name: str, signed: Path, keys: KeyPair) -> None:
    with (signed / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(SignatureError, match=name):
        verify_signature(signed, key=keys.public)
    (signed / name).unlink()
    with pytest.raises(SignatureError, match=name):
        verify_signature(signed, key=keys.public)


def test_an_altered_bundle_is_not_signed(bundle: Path, keys: KeyPair) -> None:
    with (bundle / "onnx/model.onnx").open("r+b") as file:
        file.write(b"\0")
    assert "SHA-256 differs" in refused("sign", bundle, "--key", keys.private, code=1)
    assert not (bundle / "model.sig").exists()


def test_a_bundle_without_a_signature_is_refused(bundle: Path, keys: KeyPair) -> None:
    assert "is not signed" in refused("verify", bundle, "--public-key", keys.public, code=1)


def test_a_signature_holds_for_the_links_of_the_hubs_cache(signed: Path, keys: KeyPair, tmp_path: Path) -> None:
    links = tmp_path / "links"
    for name in contents(signed):
        (links / name).parent.mkdir(parents=True, exist_ok=True)
        (links / name).symlink_to(signed / name)
    ok("verify", links, "--public-key", keys.public)


def model_signing(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "model_signing", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_of_model_signing_verifies_what_we_sign(signed: Path, keys: KeyPair) -> None:
    (signed / "README.md").write_text("# Edited")
    options = ("--signature", signed / "model.sig", "--public_key", keys.public)
    done = model_signing("verify", "key", signed, *options)
    assert (done.returncode, done.stdout.strip()) == (0, "Verification succeeded"), done.stderr
    forge(signed)
    done = model_signing("verify", "key", signed, *options)
    assert done.returncode == 1
    assert "onnx/model.onnx" in done.stderr


def test_we_verify_what_the_command_of_model_signing_signs(bundle: Path, keys: KeyPair) -> None:
    options = ("--signature", bundle / "model.sig", "--private_key", keys.private)
    done = model_signing("sign", "key", bundle, *options)
    assert done.returncode == 0, done.stderr
    ok("verify", bundle, "--public-key", keys.public)
    forge(bundle)
    assert invoke(whiten, "verify", bundle, "--public-key", keys.public).exit_code == 1


def test_a_signature_of_some_files_only_is_refused(bundle: Path, keys: KeyPair) -> None:
    options = ("--signature", bundle / "model.sig", "--private_key", keys.private)
    assert model_signing("sign", "key", bundle, *options, "--ignore-paths", bundle / "onnx").returncode == 0
    with pytest.raises(SignatureError, match=r"does not cover onnx/model\.onnx"):
        verify_signature(bundle, key=keys.public)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"null", b"[]", b'{"mediaType": 1}', b"\xff\xfe", b"[" * 100_000], ids=range(7)
)
def test_a_damaged_signature_is_refused_in_one_line(content: bytes, signed: Path, keys: KeyPair) -> None:
    (signed / "model.sig").write_bytes(content)
    error = refused("verify", signed, "--public-key", keys.public, code=1)
    assert "model.sig: is no signature; get the bundle from its author again" in error
