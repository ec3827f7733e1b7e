"""Keys in PEM files, made by cryptography."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class KeyPair:
    private: Path
    public: Path


def key_pair(folder: Path, name: str = "author", passphrase: str | None = None, key: object = None) -> KeyPair:
    """Write a pair of keys, of the curve P-256 unless another private key is given."""
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}-public.pem")
    made = key or ec.generate_private_key(ec.SECP256R1())
    protection = (
        serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    pair.private.write_bytes(made.private_bytes(pem, serialization.PrivateFormat.PKCS8, protection))
    public = made.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair.public.write_bytes(public)
    return pair
