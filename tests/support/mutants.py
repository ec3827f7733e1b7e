"""Make seeded mutants of a bundle: bytes, lengths, JSON values, fields of the graph, headers of arrays, swaps."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import onnx

from support.graph_mutants import GRAPH_CHANGES

MANIFEST, MODEL, TOKENIZER = "whiten.json", "onnx/model.onnx", "tokenizer.json"
ARRAYS = ("whitening.safetensors", "probes.safetensors")
_OWN_HASH = re.compile(rb'"manifest_sha256": ?"([0-9a-f]{64})"')

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Mutant:
    """Describes a mutant.

    Attributes:
        kind: what was changed: "bytes", "length", "json", "protobuf", "arrays" or "swap".
        file: the file that was changed.
        what: the change, in words.
        rehashed: whether sizes and hashes in the manifest were made to agree with it.
        changed: new content of files by name; None for a file that is missing.
    """

    kind: str
    file: str
    what: str
    rehashed: bool
    changed: dict[str, bytes | None]


def read_files(bundle: Path) -> dict[str, bytes]:
    """Return the content of a bundle's files by POSIX path."""
    paths = sorted(path for path in bundle.rglob("*") if path.is_file())
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in paths}


def mutant(files: Files, others: Files, number: int) -> Mutant:
    """Return the mutant of a number: the same one each time.

    Args:
        files: content of the bundle's files.
        others: content of another bundle's files, which are swapped in.
        number: number of the mutant; of four, the last two are rehashed.
    """
    random = Random(number)
    kind = random.choice(("bytes", "bytes", "length", "json", "json", "json", "protobuf", "protobuf", "arrays", "swap"))
    while True:
        file = _file_for(kind, files, random)
        content, what = _MUTATIONS[kind](file, files, others, random)
        if content != files[file]:
            break
    changed: dict[str, bytes | None] = {file: content}
    rehashed = number % 4 > 1
    if rehashed:
        changed = {**changed, MANIFEST: rehash({**files, **changed})}
    return Mutant(kind, file, what, rehashed, changed)


def rehash(files: Mapping[str, bytes | None]) -> bytes | None:
    """Return a manifest that agrees with files, and with itself; as it is where it is no JSON."""
    content = files[MANIFEST]
    if content is None:
        return None
    try:
        manifest = json.loads(content)
        for name, record in manifest["files"].items():
            found = files.get(name)
            if found is not None:
                record.update(sha256=hashlib.sha256(found).hexdigest(), bytes=len(found))
        content = json.dumps(manifest, indent=2).encode("utf-8", "surrogatepass") + b"\n"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return own_hash_renewed(content)


def own_hash_renewed(content: bytes) -> bytes:
    """Return a manifest whose own hash, if it states one, is that of its bytes with zeros in place of the hash."""
    found = _OWN_HASH.search(content)
    if found is None:
        return content
    start, end = found.span(1)
    blank = content[:start] + b"0" * 64 + content[end:]
    return content[:start] + hashlib.sha256(blank).hexdigest().encode() + content[end:]


def _file_for(kind: str, files: Files, random: Random) -> str:
    if kind == "protobuf":
        return MODEL
    if kind == "arrays":
        return random.choice([name for name in ARRAYS if name in files])
    if kind == "json":
        documents = [name for name in files if name.endswith(".json")]
        return random.choice([MANIFEST] * 6 + [TOKENIZER] * 4 + ["probes.json"] * 2 + documents)
    return random.choice(sorted(files))


def _bytes(file: str, files: Files, others: Files, random: Random) -> tuple[bytes, str]:
    content = bytearray(files[file])
    place = random.randrange(len(content))
    change = random.choice(("bit", "byte", "insert", "delete", "zeros", "repeat"))
    if change == "bit":
        content[place] ^= 1 << random.randrange(8)
    elif change == "byte":
        content[place] = random.choice((0, 0x1B, 0x7F, 0x80, 0xFF, random.randrange(256)))
    elif change == "insert":
        content[place:place] = random.randbytes(random.randint(1, 9))
    elif change == "delete":
        del content[place : place + random.randint(1, 9)]
    elif change == "zeros":
        length = min(len(content) - place, random.randint(1, 64))
        content[place : place + length] = bytes(length)
    else:
        content[place:place] = content[place : place + random.randint(1, 400)]
    return bytes(content), f"{change} at {place}"


def _length(file: str, files: Files, others: Files, random: Random) -> tuple[bytes, str]:
    content = files[file]
    if random.random() < 0.6:
        kept = random.choice((0, 1, len(content) - 1, random.randrange(len(content))))
        return content[:kept], f"cut to {kept} bytes"
    more = random.choice((b"\n", b" ", bytes(8), random.randbytes(16), content))
    return content + more, f"{len(more)} bytes more"


def _swap(file: str, files: Files, others: Files, random: Random) -> tuple[bytes, str]:
    if file in others and random.random() < 0.5:
        return others[file], "of another bundle"
    other = random.choice(sorted(files))
    return files[other], f"in place of it {other}"


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 5, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "\0", "\x1b[2J\x9b31m", "\u202etxt", "\ud800", "{text}", "../../etc/passwd", "x" * 100_000),
    *(
        [],
        {},
        [[]],
        [0] * 10_000,
        {"": None},
        {"type": "BertNormalizer"},
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}},
    ),
)


def _json(file: str, files: Files, others: Files, random: Random) -> tuple[bytes, str]:
    """Change one value of a JSON document, remove it, rename its key, or swap it with another."""
    document = json.loads(files[file])
    if random.random() < 0.03:
        depth = random.choice((100, 1000, 200_000))
        return b"[" * depth + b"]" * depth, f"{depth} lists in one another"
    holder, key, path = _place(document, random)
    change = random.choice(("value", "value", "value", "number", "remove", "rename", "swap"))
    if change == "remove":
        del holder[key]
    elif change == "rename" and isinstance(holder, dict):
        holder[random.choice((f"{key}_", key.upper(), "", "\0"))] = holder.pop(key)
    elif change == "swap":
        other, place, _ = _place(document, random)
        if other is holder:
            holder[key], other[place] = other[place], holder[key]
        else:
            holder[key] = json.loads(json.dumps(other[place]))
    elif change == "number" and isinstance(holder[key], int | float):
        holder[key] = random.choice((holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2, not holder[key]))
    else:
        holder[key] = random.choice(_VALUES)
    indent = None if random.random() < 0.5 else 2
    return json.dumps(document, indent=indent).encode("utf-8", "surrogatepass"), f"{change} {path}"


def _place(document: Any, random: Random) -> tuple[Any, Any, str]:
    """Return a container inside a document, the key of one of its items, and the path to it."""
    holder, key, path = {"": document}, "", ""
    while True:
        below = holder[key]
        if not isinstance(below, dict | list) or not below or (path and random.random() < 0.25):
            return (holder, key, path) if path else (document, next(iter(document)), "first")
        holder, key = below, random.choice(sorted(below)) if isinstance(below, dict) else random.randrange(len(below))
        path += f"/{key}"


def _protobuf(file: str, files: Files, others: Files, random: Random) -> tuple[bytes, str]:
    """Change a field of the graph."""
    model = onnx.load_from_string(files[file])
    change = random.choice(GRAPH_CHANGES)
    try:
        what = change(model, random)
        return model.SerializeToString(), f"{change.__name__[1:]} {what}"
    except (ValueError, TypeError, IndexError):  # a value that protobuf does not take
        return files[file], ""


def _arrays(file: str, files: Files, others: Files, random: Random) -> tuple[bytes, str]:
    """Change the header of a file of safetensors, or a number in its data."""
    content = files[file]
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    change = random.choice(("length", "dtype", "shape", "offsets", "name", "data", "extra"))
    name = random.choice([key for key in header if key != "__metadata__"])
    if change == "length":
        length = random.choice((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1))
        return length.to_bytes(8, "little") + content[8:], f"header of {length} bytes"
    if change == "dtype":
        header[name]["dtype"] = random.choice(("F32", "I64", "F16", "BF16", "U8", "BOOL", "F8_E4M3", "X", "", 1))
    elif change == "shape":
        header[name]["shape"] = random.choice(
            ([], [1], [0], [2**40], [2**63], [-1], [1] * 300, header[name]["shape"][::-1])
        )
    elif change == "offsets":
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = random.choice(
            ([0, 0], [end, begin], [begin, end + 8], [begin, 2**63], [begin + 8, end])
        )
    elif change == "name":
        header[random.choice(("x", "mean", "W", "embeddings"))] = header.pop(name)
    elif change == "data":
        place = random.randrange(len(data) - 8)
        number = random.choice((random.randbytes(8), b"\0\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf0\x7f"))
        data = data[:place] + number + data[place + 8 :]
    else:
        header["__metadata__"] = {"a": "b" * 1000}
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data, f"{change} of {name}"


_MUTATIONS = {
    "bytes": _bytes,
    "length": _length,
    "json": _json,
    "protobuf": _protobuf,
    "arrays": _arrays,
    "swap": _swap,
}
