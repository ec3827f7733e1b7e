"""Keys and passphrases are taken, asked for, or refused in one line."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("model_signing", reason="needs whiten[sign]")

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from support.bundles import contents
from support.cli import invoke, ok, refused
from support.keys import KeyPair, key_pair
from whiten_runtime.commands.main import whiten
from whiten_runtime.commands.sign import PASSPHRASE
from whiten_runtime.errors import UsageError
from whiten_runtime.signing import sign_bundle, verify_signature


def test_a_passphrase_comes_from_the_environment(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = key_pair(tmp_path, "locked", "open sesame é")
    assert f"set {PASSPHRASE}, or sign in a terminal" in refused("sign", bundle, "--key", pair.private)
    monkeypatch.setenv(PASSPHRASE, "wrong")
    result = invoke(whiten, "sign", bundle, "--key", pair.private)
    assert result.exit_code == 2
    assert "or the passphrase does not open it" in result.stderr
    assert "wrong" not in result.output
    monkeypatch.setenv(PASSPHRASE, "open sesame é")
    ok("sign", bundle, "--key", pair.private)
    ok("verify", bundle, "--public-key", pair.public)


def test_a_passphrase_is_asked_for_in_a_terminal(bundle: Path, tmp_path: Path) -> None:
    import pty

    pair = key_pair(tmp_path, "locked", "swordfish")
    code = "from whiten_runtime.commands.main import main; main()"
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", code, "sign", str(bundle), "--key", str(pair.private)])
    shown = b""
    while b"Passphrase of" not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, b"swordfish\n")
    try:
        while piece := os.read(terminal, 1024):
            shown += piece
    except OSError:  # the child has ended
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, shown
    assert b"swordfish" not in shown
    verify_signature(bundle, key=pair.public)


def no_pem(folder: Path) -> Path:
    path = folder / "no.pem"
    path.write_text("hello")
    return path


KEYS = {
    "missing": (lambda folder: folder / "none.pem", "is no file"),
    "folder": (lambda folder: folder, "is no file"),
    "device": (lambda folder: Path("/dev/null"), "/dev/null: is no file"),
    "no pem": (no_pem, "in PEM"),
    "rsa": (
        lambda folder: key_pair(folder, "rsa", key=rsa.generate_private_key(65537, 2048)),
        "key of P-256, P-384 or P-521 in PEM",
    ),
    "ed25519": (
        lambda folder: key_pair(folder, "ed", key=ed25519.Ed25519PrivateKey.generate()),
        "key of P-256, P-384 or P-521 in PEM",
    ),
    "curve": (lambda folder: key_pair(folder, "k1", key=ec.generate_private_key(ec.SECP256K1())), "secp256k1"),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("command", ["sign", "verify"])
def test_a_key_that_cannot_be_used_is_a_usage_error(name: str, command: str, signed: Path, tmp_path: Path) -> None:
    make, message = KEYS[name]
    found = make(tmp_path)
    if isinstance(found, KeyPair):
        found = found.private if command == "sign" else found.public
    before = contents(signed)
    option = "--key" if command == "sign" else "--public-key"
    assert message in refused(command, signed, option, found)
    assert contents(signed) == before


def test_keys_that_change_places_are_named(signed: Path, keys: KeyPair) -> None:
    with pytest.raises(UsageError, match="is no private key of P-256"):
        sign_bundle(signed, keys.public)
    with pytest.raises(UsageError, match="is no public key of P-256"):
        verify_signature(signed, key=keys.private)


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_larger_curves_sign_too(curve: ec.EllipticCurve, bundle: Path, tmp_path: Path) -> None:
    pair = key_pair(tmp_path, "large", key=ec.generate_private_key(curve))
    sign_bundle(bundle, pair.private)
    verify_signature(bundle, key=pair.public)
