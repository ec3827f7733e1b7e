"""Read and write the wire format of protobuf, of which ONNX files are made, without the onnx package."""

import mmap
from collections.abc import Iterator

Data = bytes | memoryview | mmap.mmap
Span = tuple[int, int]
"""Place of the bytes of a field: (start, end)."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_LENGTH = 2**31 - 1


def fields(data: Data, position: int, end: int) -> Iterator[tuple[int, int | Span]]:
    """Yield (field number, its number or the place of its bytes) of a message; fields of fixed size are skipped."""
    while position < end:
        key = data[position]
        if key < 0x80:  # nearly always; a call takes as long as the rest of this loop
            position += 1
        else:
            key, position = varint(data, position, end)
        number, wire = key >> 3, key & 7
        if not 1 <= number < 1 << 29:
            raise ValueError("no such field number")
        if wire == _BYTES:
            length = data[position] if position < end else 0x80
            if length < 0x80:
                position += 1
            else:
                length, position = varint(data, position, end)
            if length > _MAX_LENGTH or position + length > end:
                raise ValueError("field runs past its message")
            yield number, (position, position + length)
            position += length
        elif wire == _VARINT:
            value, position = varint(data, position, end)
            yield number, value
        elif wire in (_FIXED32, _FIXED64):
            position += 4 if wire == _FIXED32 else 8
        else:
            raise ValueError("unknown wire type")
    if position != end:
        raise ValueError("message is cut short")


def spans(data: Data, position: int, end: int) -> Iterator[tuple[int, Span]]:
    """Yield (field number, (start, end)) of every length-delimited field, as `fields` does."""
    return ((number, value) for number, value in fields(data, position, end) if not isinstance(value, int))


def varint(data: Data, position: int, end: int) -> tuple[int, int]:
    """Read a varint in its shortest form.

    Longer forms are refused because parsers disagree about them: onnxruntime's parser drops bits that a longer form
    carries, and so would read as an allowed field what this function reads as an unknown one.
    """
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ValueError("varint is longer than it need be")
            return value, position
        shift += 7
    raise ValueError("unterminated varint")


def encoded(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    return varint_bytes(number << 3 | _BYTES) + varint_bytes(len(content)) + content


def varint_bytes(value: int) -> bytes:
    """Encode a number in the shortest form of a varint."""
    groups = []
    while value >= 1 << 7:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
