"""Read a vocabulary in tiktoken's format, and turn token ids back into the text that they were made of."""

from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

from whiten_runtime.errors import DataError, UsageError


class TiktokenFile:
    """Holds the bytes of each token of a file such as cl100k_base.tiktoken.

    Each line holds the bytes of a token in base64, a blank, and the token's id.

    Args:
        path: the file.

    Raises:
        DataError: it cannot be read, or is not of this format.
    """

    def __init__(self, path: Path) -> None:
        self._stamp = _stamp(path)
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise _unreadable(path, error) from error
        self._tokens: dict[int, bytes] = {}
        for number, line in enumerate(lines, 1):
            if line:
                token, rank = _token(line, f"{path}:{number}")
                if rank in self._tokens:
                    raise DataError(f"{path}:{number}: id {rank} is there twice; get tiktoken's file again")
                self._tokens[rank] = token
        if not self._tokens:
            raise DataError(f"{path}: holds no token; wanted tiktoken's file of ranks")

    @classmethod
    def opened(cls, path: Path | None, before: "TiktokenFile | None" = None) -> "TiktokenFile | None":
        """Return the contents of a file, those that were read before if it is still the same; None for no file.

        Raises:
            DataError: it cannot be read, or is not of this format.
        """
        if path is None:
            return None
        return before if before is not None and before._stamp == _stamp(path) else cls(path)

    def __len__(self) -> int:
        return len(self._tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids.

        Clients cut long texts between tokens, which may be within a character. Of a character that is cut at the
        beginning or at the end, nothing is kept.

        Raises:
            UsageError: an id is not in the file, or the bytes are not UTF-8.
        """
        try:
            joined = b"".join([self._tokens[one] for one in ids])
        except KeyError as error:
            raise UsageError(
                f"token id {error.args[0]} is not one of the {len(self)} tokens of the server's file"
            ) from None
        try:
            return _whole(joined).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"the token ids are not those of a text (byte {error.start} is not UTF-8)") from None


def _stamp(path: Path) -> tuple[object, ...]:
    """Return what changes when a file is replaced or written.

    Raises:
        DataError: it cannot be read.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror}); wanted tiktoken's file of ranks")


def _token(line: bytes, where: str) -> tuple[bytes, int]:
    fields = line.split()
    try:
        token, rank = b64decode(fields[0], validate=True), int(fields[1])
    except (ValueError, IndexError):
        rank = -1
    if rank < 0 or len(fields) != 2:
        raise DataError(f"{where}: not a token in base64 and its id; wanted tiktoken's file of ranks") from None
    return token, rank


def _whole(text: bytes) -> bytes:
    """Return bytes without the parts of characters that are cut at either end."""
    start = 0
    while start < min(3, len(text)) and text[start] & 0xC0 == 0x80:
        start += 1
    for back in range(1, min(3, len(text) - start) + 1):
        first = text[-back]
        if first & 0xC0 == 0xC0:
            length = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2
            return text[start : len(text) - back] if back < length else text[start:]
        if first & 0xC0 != 0x80:
            break
    return text[start:]
