"""Implement `whiten verify`: check a bundle's files and its vectors."""

from whiten_runtime.bundle.bundle import changed_client_files
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.console import bundle_argument, command, device_option, print_json, say
from whiten_runtime.commands.help import heading, option
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.opened.encoder import Encoder
from whiten_runtime.opened.opening import proof_of
from whiten_runtime.opened.vector_whitener import VectorWhitener
from whiten_runtime.ort.providers import Provider


@command(
    section="Check",
    examples=(
        "whiten verify bundles/minilm",
        "whiten verify ORG/NAME --json",
    ),
)
@bundle_argument
@heading("Execution")
@device_option
@option("--quick", is_flag=True, help="Leave out test texts of more than 1,024 tokens, which take seconds.")
def verify(bundle: str, providers: tuple[Provider, ...], quick: bool, as_json: bool) -> None:
    """Check that a bundle gives the original model's vectors on this machine.

    It compares the hashes of the files, embeds the bundle's test texts, and compares the vectors with those that the
    reference, such as PyTorch, gave at export. The exit code is 1 if they differ by more than the gate allows. Files
    that only other programs read may differ from the manifest; they are named.

    This detects damage, not forgery: whoever can write to the bundle can rewrite hashes and probes too. A signature
    tells who made the bundle: model_signing, a program of its own, signs and checks the folder.

    The result goes to stderr. With --json, a document is printed on stdout once the vectors were compared, whether they
    agree or not. If an earlier check fails, such as that of the hashes, stdout stays empty and the exit code is 1.
    """
    path = locate_bundle(bundle)
    opened = VectorWhitener if read_manifest(path).input == "vectors" else Encoder
    with opened(path, providers or None) as encoder:
        proof = proof_of(encoder, quick)
        changed = changed_client_files(path, encoder.manifest.files)
    if changed:
        names = ", ".join(changed)
        say(f"{bundle}: of files that only other programs read, these differ from its manifest: {names}")
    if as_json:
        report = {"passed": proof.passed, "provider": proof.provider, "agreement": proof.agreement, "gate": proof.gate}
        print_json(report | {"changed_client_files": changed})
    proof.check(bundle)
    say(f"{bundle}: equal to {proof.reference} on {proof.provider}: {proof.agreement} (gate: {proof.gate})")
    say(f"{bundle}: this detects damage, not forgery; a signature tells who made the bundle (model_signing verify)")
