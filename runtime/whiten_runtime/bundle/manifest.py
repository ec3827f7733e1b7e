"""Read and check the manifest, `whiten.json`: source, layers, pooling, whitening, parity and files of a bundle."""

import json
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from whiten_runtime.bundle.files import HASH_FIELD, MANIFEST_BYTES, own_hash, read_file, with_hash_field
from whiten_runtime.bundle.records import (
    SPACE_DIGITS,
    ChoiceRecord,
    FileRecord,
    Input,
    ParityRecord,
    Pooling,
    Precision,
    QuantizationRecord,
    Side,
    Similarity,
    Source,
    Target,
    TextMemory,
    WhiteningRecord,
    is_space,
    pooling_modes,
)
from whiten_runtime.errors import BundleError, IntegrityError, UsageError, kind_of_place

FORMAT_VERSION = 1
MANIFEST_FILE = "whiten.json"
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
"""Message of msgspec for a field that a record does not have."""

_FORMER = {"outputs": ("whitened", "both"), "vectors": ("float32",)}
"""Fields that versions before 0.5 wrote, with the values that need no reader: outputs, which the graph itself shows,
and vectors that are not rounded."""

NESTED_METHODS = frozenset({"pca", "pca-cor"})
"""Methods whose first m columns are the whitening to m dimensions."""

LEAST = {"dimension": 1, "max_seq_length": 1, "pad_token_id": 0}
"""Numbers that every manifest of texts has, each with its least value."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Represents the content of `whiten.json`; docs/bundle-format.md is its specification."""

    format_version: int
    name: str
    space: str | None = None
    """Id of the space of the vectors; None after an edit by hand (`space.space_of`)."""
    source: Source
    input: Input = "text"
    """Input of the graph: token ids of texts, or precomputed embeddings."""
    layers: tuple[int, ...]
    """Indices into the hidden states: 0 is the embedding layer, l the output of block l; empty for vectors."""
    layer_weights: tuple[float, ...] | None = None
    """Weights of the layers in their average; None for equal ones."""
    pooling: Pooling | None
    """Pooling over the tokens, such as "mean" or "cls+mean"; None for vectors."""
    include_prompt: bool = True
    """Whether the tokens of a prompt take part in the pooling."""
    modules: tuple[str, ...] = ()
    """Modules between the pooling and the whitening, such as "Dense(768 -> 768, Tanh)"."""
    unwhitened_dimension: int | None = None
    """Number of coordinates before whitening; None if it is the size of a hidden state."""
    prompts: dict[str, str] = {}
    """Prompts by name: put before a text, or around it if they contain "{text}"."""
    default_prompt_name: str | None = None
    """Name of the prompt that texts get if none is asked for; None for no prompt."""
    truncation_side: Side = "right"
    """Side from which tokens are removed from texts that are too long."""
    similarity_fn_name: Similarity = "cosine"
    """Similarity of two vectors that the model was trained for."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """Numbers of leading coordinates to which vectors without a whitening may be cut."""
    route: str | None = None
    """Route of a sentence-transformers Router that was exported; None if the model has none."""
    whitening: WhiteningRecord | None
    choice: ChoiceRecord | None = None
    """Choice of the whitening, if it was "auto"; otherwise None."""
    normalize: bool
    """Whether the graph divides each vector by its L2 norm."""
    dimension: int
    max_seq_length: int
    """Maximum number of tokens, special tokens included; longer texts are truncated. 0 for vectors."""
    tokenizer_sha256: str | msgspec.UnsetType = msgspec.UNSET
    """SHA-256 of what `tokenizer.json` means (`tokenizer_sha256`). Absent for vectors, and in bundles before 0.5."""
    pad_token_id: int
    memory: TextMemory | msgspec.UnsetType = msgspec.UNSET
    """Memory of a text on a CPU; absent if no text has more than 512 tokens, and in bundles of 0.4."""
    precision: Precision
    target: Target = "cpu"
    """Target of the graph; for "cuda", operators are fused for NVIDIA GPUs, which needs onnxruntime's own operators."""
    quantization: QuantizationRecord | None = None
    """Scales of an int8 graph; None for other precisions."""
    opset: int
    versions: dict[str, str]
    parity: ParityRecord | None
    """Agreement with the reference; None only while a bundle is being made."""
    published: ParityRecord | None = None
    """Agreement of the reference before whitening, normalised as its authors do, with the program that the model was
    published for, such as sentence-transformers; None if the layers, the pooling or the modules are not the model's
    own, and after a refit."""
    files: dict[str, FileRecord]
    """Files by POSIX path relative to the bundle: all except the manifest."""

    @property
    def nested(self) -> bool:
        """Return whether the first m coordinates of a vector are the vector whitened to m dimensions."""
        whitening = self.whitening
        return whitening is not None and whitening.method in NESTED_METHODS and whitening.alignment is None

    @property
    def unwhitened_width(self) -> int:
        """Return the number of coordinates of a vector before whitening."""
        return self.source.hidden_size if self.unwhitened_dimension is None else self.unwhitened_dimension

    def to_json(self) -> bytes:
        """Serialise with two-space indentation, a final newline, and the hash of the bytes in `manifest_sha256`."""
        return with_hash_field(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


class _Version(msgspec.Struct, frozen=True):
    format_version: int


def read_manifest(bundle: Path) -> Manifest:
    return parse_manifest(read_content(bundle), bundle / MANIFEST_FILE)


def read_content(bundle: Path) -> bytes:
    path = bundle / MANIFEST_FILE
    if (kind := kind_of_place(bundle, BundleError)) != "directory":
        what = "does not exist" if kind is None else "is not a directory"
        raise BundleError(f"bundle '{bundle}' {what}; make one with whiten-export, or check the path")
    try:
        return read_file(path, MANIFEST_BYTES)
    except FileNotFoundError:
        raise BundleError(
            f"'{bundle}' is not a whiten bundle: it has no {MANIFEST_FILE}; make one with whiten-export"
        ) from None
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}; check the file's permissions") from error


def bundle_hash(bundle: Path) -> str:
    """Return the SHA-256 of the bytes of `whiten.json` in a bundle directory, which hold that of every other file."""
    return sha256(read_content(bundle)).hexdigest()


def parse_manifest(content: bytes, path: Path) -> Manifest:
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{path}: bundle format {version}, but this version of whiten reads format {FORMAT_VERSION}; "
                f"{'upgrade whiten' if version > FORMAT_VERSION else 'export the model again'}"
            )
        fields = json.loads(content.decode("utf-8"), object_pairs_hook=_object)
        _check_hash(path, content, fields.pop(HASH_FIELD, None))
        _drop_former_fields(path, fields)
        manifest = msgspec.convert(fields, Manifest)
    except msgspec.ValidationError as error:
        if unknown := _UNKNOWN.fullmatch(str(error)):
            name = ".".join(part for part in (unknown[2], unknown[1]) if part)
            raise BundleError(
                f"{path}: has the field {name!r}, which this version of whiten does not know; upgrade whiten"
            ) from None
        raise BundleError(
            f"{path}: not a manifest that this version of whiten understands ({error}); upgrade whiten, or export the "
            "model again"
        ) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not a manifest ({error}); export the model again") from None
    _check(manifest, path)
    return manifest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the field {twice!r} is there twice")
    return fields


def _check_hash(path: Path, content: bytes, stated: object) -> None:
    """Check the hash that a manifest states of its own bytes; one that was edited by hand may state none."""
    if stated is None:
        return
    computed = own_hash(content)
    if stated != computed:
        raise IntegrityError(
            f"{path}: {HASH_FIELD} is {str(stated)[:64]!r}, but the file's own is {computed or 'none'}; it was "
            f"altered: copy the bundle again, or, if you edited it on purpose, delete the line of {HASH_FIELD}"
        )


def _drop_former_fields(path: Path, fields: dict[str, Any]) -> None:
    """Drop the fields that only versions before 0.5 wrote; refuse values that mean more than nothing."""
    for name, readable in _FORMER.items():
        if (value := fields.pop(name, readable[0])) not in readable:
            raise BundleError(
                f"{path}: {name} is {value!r}, which only versions before 0.5 read; export the model again"
            )
    for record in (fields.get("parity"), fields.get("published")):
        if isinstance(record, dict) and record.get("stepped") is None:
            record.pop("stepped", None)


def _check(manifest: Manifest, path: Path) -> None:
    for name in manifest.files:
        parts = PurePosixPath(name)
        if not name or parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name:
            raise BundleError(f"{path}: file name {name!r} would leave the bundle; the manifest was tampered with")
        if not name.isprintable():
            raise BundleError(f"{path}: file name {name!r} has control characters; the manifest was tampered with")
    alignment = manifest.whitening and manifest.whitening.alignment
    for space in (manifest.space, alignment.space if alignment else None):
        if space is not None and not is_space(space):
            raise BundleError(f"{path}: space is {space!r}; wanted {SPACE_DIGITS} hexadecimal digits; export it again")
    for field, least in LEAST.items():
        bound = 0 if (manifest.input, field) == ("vectors", "max_seq_length") else least
        if not bound <= (value := getattr(manifest, field)) < 1 << 31:
            raise BundleError(f"{path}: {field} is {value}; wanted {bound} to {(1 << 31) - 1}; export it again")
    try:
        pooling_modes("mean" if manifest.pooling is None else manifest.pooling)
    except UsageError as error:
        raise BundleError(f"{path}: {error}; upgrade whiten, or export the model again") from None
