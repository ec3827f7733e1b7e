"""Implement `whiten sign`: sign a bundle with a private key."""

import os
import sys
from pathlib import Path

import click

from whiten_runtime.bundle.bundle import UNSIGNED_FILES, changed_client_files
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.console import json_option, one_line_errors, print_json, quiet_option, say
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.signing import sign_bundle

PASSPHRASE = "WHITEN_KEY_PASSPHRASE"


@command(
    section="Share",
    examples=(
        "whiten sign bundles/minilm --key private.pem",
        "whiten sign bundles/minilm --key private.pem --json",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@heading("Signature")
@option(
    "--key",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Private key in PEM. It is of the curve P-256, P-384 or P-521.",
)
@heading("Output")
@json_option
@quiet_option
@one_line_errors
def sign(bundle: Path, key: Path, as_json: bool) -> None:
    """Sign the bundle in a directory.

    whiten verify --public-key can then tell who made it. The signature is model.sig in the bundle. It covers
    whiten.json and every file that it lists but README.md, and is in the form of OpenSSF model-signing. The hashes of
    the files that whiten reads are checked first. Files that only other programs read are signed as they are; it names
    those that differ from the manifest. A passphrase of the key is asked for, or taken from WHITEN_KEY_PASSPHRASE.
    """
    written = sign_bundle(bundle, key, passphrase=_passphrase(key))
    names = changed_client_files(bundle, read_manifest(bundle).files)
    changed = [name for name in names if name not in UNSIGNED_FILES]
    if changed:
        say(
            f"{bundle}: of files that only other programs read, these differ from its manifest: {', '.join(changed)}; "
            "they were signed as they are now"
        )
    say(f"{bundle}: signed in {written}; give others the public key over another channel than the bundle")
    if as_json:
        print_json({"bundle": str(bundle), "signature": str(written), "changed_client_files": changed})


def _passphrase(key: Path) -> str | None:
    """Return the passphrase of a key, or None if it has none."""
    if not key.is_file() or b"ENCRYPTED" not in key.read_bytes():
        return None
    if (known := os.environ.get(PASSPHRASE)) is not None:
        return known
    if not sys.stdin.isatty():
        raise UsageError(f"{key}: this key is protected by a passphrase; set {PASSPHRASE}, or sign in a terminal")
    answer: str = click.prompt(f"Passphrase of {key}", hide_input=True, err=True)
    return answer
