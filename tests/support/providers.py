"""Made files of onnxruntime's providers."""

import struct
from pathlib import Path


def elf(*names: str) -> bytes:
    """A shared library that needs others, and holds nothing else."""
    table = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = [table.index(name.encode() + b"\0") for name in names]
    address, header, entries = 0x4000, 64 + 2 * 56, 16 * (len(names) + 2)
    dynamic = b"".join(struct.pack("<qQ", 1, place) for place in places)
    dynamic += struct.pack("<qQ", 5, address + header + entries) + struct.pack("<qQ", 0, 0)
    size = header + entries + len(table)
    programs = struct.pack("<IIQQQQQQ", 1, 4, 0, address, 0, size, size, 4096)
    programs += struct.pack("<IIQQQQQQ", 2, 4, header, address + header, 0, entries, entries, 8)
    start = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    start += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    return start + programs + dynamic + table


def elf_of_cuda(folder: Path, *names: str) -> Path:
    """onnxruntime's CUDA provider, needing these libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libonnxruntime_providers_cuda.so"
    path.write_bytes(elf(*names))
    return path
