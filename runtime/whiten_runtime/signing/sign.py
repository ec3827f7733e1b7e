"""Sign a bundle with a private key: one detached file beside whiten.json, in the form of OpenSSF model-signing."""

from pathlib import Path
from tempfile import TemporaryDirectory

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.signature import SIGNATURE_FILE, signed_files
from whiten_runtime.checks import needing, path_of
from whiten_runtime.errors import BundleError
from whiten_runtime.files.replacing import replace_file
from whiten_runtime.signing.keys import check_private_key
from whiten_runtime.signing.listed_files import ListedFiles, foreign_files, some_names


def sign_bundle(
    path: str | Path, key: str | Path, *, passphrase: str | None = None, signature: str | Path | None = None
) -> Path:
    """Sign a bundle, and return the file of the signature. No other file is changed.

    The signature covers whiten.json and every file that it lists but README.md. Files that only other programs read may
    differ from whiten.json, and are signed as they are. The signature is that of `model_signing sign key`, whose own
    `verify` checks it too.

    Args:
        path: the bundle's directory.
        key: private key in PEM, of the curve P-256, P-384 or P-521.
        passphrase: what the key is protected by; None for a key that is not.
        signature: file to write; None for model.sig in the bundle. An earlier one is replaced.

    Raises:
        BundleError: not a bundle, or an altered or incomplete one, or its folder holds a file that it does not list,
            which a check of the signature would refuse: it is not signed.
        UsageError: the key cannot be used.
        WhitenError: the signature cannot be written.
        MissingPackageError: model-signing is not installed.
    """
    root, private = path_of("path", path), path_of("key", key)
    target = root / SIGNATURE_FILE if signature is None else path_of("signature", signature)
    with needing("sign"):
        from model_signing import signing
    check_private_key(private, passphrase)
    bundle = open_bundle(root)
    if others := foreign_files(root, bundle.manifest, target):
        raise BundleError(
            f"{root}: holds {some_names(others)}, which whiten.json does not list, and a check of the signature would "
            "refuse; move it elsewhere, and sign again"
        )
    files = ListedFiles(root, signed_files(bundle.manifest))
    password = None if passphrase is None else passphrase.encode()
    signer = signing.Config().use_elliptic_key_signer(private_key=private, password=password)
    with TemporaryDirectory(prefix="whiten-") as folder:
        written = Path(folder) / SIGNATURE_FILE
        signer.set_hashing_config(files).sign(root, written)
        content = written.read_bytes()
    replace_file(target, content)
    return target
