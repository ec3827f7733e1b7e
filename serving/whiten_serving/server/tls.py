"""Open the certificate of TLS."""

import ssl
from pathlib import Path

from whiten_runtime.errors import DataError


class Certificate:
    """Holds a server's certificate and key, which may be read again when their files were replaced.

    Args:
        cert: file of the certificate chain, PEM.
        key: file of its private key, PEM.

    Attributes:
        context: context of connections that are made from now on; a context is never changed after it was made.

    Raises:
        DataError: a file cannot be read, or they do not belong together.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._files = cert, key
        self.context = _context(cert, key)

    def reload(self) -> None:
        """Read the files again; if they cannot be used, the old certificate stays.

        Raises:
            DataError: a file cannot be read, or they do not belong together.
        """
        self.context = _context(*self._files)


def certificate(cert: str | None, key: str | None) -> Certificate | None:
    """Return a certificate, or None where no files are given.

    Raises:
        DataError: a file cannot be read, or they do not belong together.
    """
    return None if cert is None or key is None else Certificate(cert, key)


def _context(cert: str, key: str) -> ssl.SSLContext:
    for file in (cert, key):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}; wanted a file in PEM") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise DataError(f"{cert}, {key}: not a certificate and its key, in PEM and without a password: {why}") from None
    return context
