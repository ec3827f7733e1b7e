"""Read the content of compressed files; streams may follow one another, as of `cat a.xz b.xz`, and zeros may."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal, cast

from whiten_runtime.errors import DataError, needing

Compression = Literal["gz", "zst", "bz2", "xz"]


@contextmanager
def content_of(raw: BinaryIO, name: str, compression: Compression | None) -> Iterator[BinaryIO]:
    """Open the content of an open file; of a compressed one, it can be read from front to back only."""
    if compression is None:
        yield raw
        return
    if raw.seekable():  # gzip and zstd read an empty file as one without lines
        if not raw.read(1):
            raise _not_whole(name, compression, EOFError("it is empty"))
        raw.seek(0)
    try:
        with _decompressed(raw, compression) as stream:
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _not_whole(name, compression, error) from None
    except OSError as error:
        if error.errno is not None:  # of the file itself
            raise
        raise _not_whole(name, compression, error) from None


def _not_whole(name: str, compression: Compression, error: Exception) -> DataError:
    return DataError(f"{name}: not a complete .{compression} file ({' '.join(str(error).split())})")


def _decompressed(raw: BinaryIO, compression: Compression) -> BinaryIO:
    if compression == "gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if compression in ("bz2", "xz"):
        return io.BufferedReader(_Streams(raw, bz2.BZ2Decompressor if compression == "bz2" else lzma.LZMADecompressor))
    with needing("parquet"):
        import pyarrow
    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))


class _Streams(io.RawIOBase):
    """Reads all streams of a file; `bz2` and `lzma` take what is no stream, and all that follows zeros, as its end."""

    def __init__(self, raw: BinaryIO, start: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self._raw, self._start, self._stream = raw, start, start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = b""
        while not part:
            rest = b""
            if self._stream.eof:
                rest = self._stream.unused_data.lstrip(b"\0")
                while not rest and (more := self._raw.read(io.DEFAULT_BUFFER_SIZE)):
                    rest = more.lstrip(b"\0")
                if not rest:
                    return 0
                self._stream = self._start()
            elif self._stream.needs_input:
                rest = self._raw.read(io.DEFAULT_BUFFER_SIZE)
                if not rest:
                    raise EOFError("it ends within a stream")
            part = self._stream.decompress(rest, len(buffer))
        buffer[: len(part)] = part
        return len(part)
