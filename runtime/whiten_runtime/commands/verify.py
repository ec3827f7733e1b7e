"""Implement `whiten verify`: check a bundle's files, its author if asked, and its vectors."""

from pathlib import Path

import click

from whiten_runtime.bundle.bundle import changed_client_files
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.console import (
    bundle_argument,
    device_option,
    json_option,
    one_line_errors,
    print_json,
    quiet_option,
    say,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.opened.encoder import Encoder
from whiten_runtime.opened.opening import proof_of
from whiten_runtime.opened.vector_whitener import VectorWhitener
from whiten_runtime.ort.providers import Provider
from whiten_runtime.signing import verify_signature


@command(
    section="Check",
    examples=(
        "whiten verify bundles/minilm",
        "whiten verify ORG/NAME --public-key author.pub.pem --json",
    ),
)
@bundle_argument
@heading("Author")
@option(
    "--public-key",
    "key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The signer's public key (PEM).",
)
@heading("Output")
@json_option
@quiet_option
@heading("Execution")
@device_option
@one_line_errors
def verify(
    bundle: str,
    key: Path | None,
    providers: tuple[Provider, ...],
    as_json: bool,
) -> None:
    """Prove that a bundle computes what its reference computed.

    The reference, such as PyTorch, computed at export; the bundle computes on this machine.

    Checks the SHA-256 of every file, embeds the bundle's probe texts and compares them with the vectors that the
    reference gave. Exits with 1 if they differ by more than the gate allows. Files that only other programs read may
    differ from the manifest; they are named.

    This detects damage, not forgery: whoever can write to the bundle can rewrite hashes and probes too. --public-key
    first checks that its owner signed every file but README.md. It exits with 1 if the bundle is unsigned, or signed
    by somebody else.

    The result goes to stderr. With --json, a document is printed on stdout once the vectors were compared, whether they
    agree or not. If an earlier check fails, such as hashes or the signature, stdout stays empty and the exit code is 1.
    """
    signed = None if key is None else verify_signature(bundle, key)
    path = locate_bundle(bundle)
    opened = VectorWhitener if read_manifest(path).input == "vectors" else Encoder
    with opened(path, providers or None) as encoder:
        if signed is not None:
            signed.check(encoder)
        proof = proof_of(encoder)
        changed = changed_client_files(path, encoder.manifest.files)
    if changed:
        names = ", ".join(changed)
        say(f"{bundle}: of files that only other programs read, these differ from its manifest: {names}")
    if as_json:
        report = {"passed": proof.passed, "provider": proof.provider, "agreement": proof.agreement, "gate": proof.gate}
        print_json(report | {"changed_client_files": changed, "signer": signed and signed.signer})
    proof.check(bundle)
    say(f"{bundle}: equal to {proof.reference} on {proof.provider}: {proof.agreement} (gate: {proof.gate})")
    if signed is None:
        say(f"{bundle}: this detects damage, not forgery; check its author with --public-key")
    else:
        say(f"{bundle}: signed by {signed.signer}")
