"""What `whiten.json` says: where a bundle comes from, how its vectors are made, and how well they match PyTorch."""

from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from whiten_runtime.errors import BundleError

FORMAT_VERSION = 1
MANIFEST_FILE = "whiten.json"

Input = Literal["text", "vectors"]
Pooling = Literal["mean", "cls", "last", "sif"]
Precision = Literal["fp32", "fp16", "int8"]
WhiteningMethod = Literal["pca", "none"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The pretrained language model, word vectors or vectors a bundle was made from."""

    model: str
    """Name in the catalogue, or of the directory or repository."""
    checkpoint: str | None
    """Hub id, or None for a local directory."""
    revision: str | None
    """Commit on the hub, where known."""
    weights_sha256: str
    """SHA-256 over the weight files, in the order of their names."""
    merged_into: str | None = None
    """Where the weights are those of a LoRA adapter: the model it was merged into."""
    model_type: str
    """transformers' name of the architecture; "words" for word vectors, "vectors" for vectors from elsewhere."""
    num_hidden_layers: int
    hidden_size: int
    sentence_similarity: bool
    """Whether the checkpoint was already fine-tuned for sentence similarity."""


class CorpusRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One source of the sentences a whitening was fitted on."""

    name: str
    sha256: str
    """SHA-256 over the sentences used, each followed by a newline, as UTF-8."""
    sentences: int


class WhiteningRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How the affine map y = (x - mean) W at the end of the graph was fitted."""

    method: WhiteningMethod
    """"none": the map only takes away common components."""
    common_components: int = 0
    """Directions that were taken away before, those of the largest second moment (SIF)."""
    beta: float
    """Exponent: W = U Λ^(-beta/2); 1 is full whitening."""
    shrinkage: float
    eigenvalue_floor: float
    """Relative to the largest eigenvalue."""
    rank: int
    """Eigenvalues above the floor."""
    n_samples: int
    corpus: tuple[CorpusRecord, ...]


class ParityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of the written graph with the PyTorch reference, measured at export."""

    reference: str
    vectors: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    """Largest |difference| of any coordinate, divided by the norm of the reference vector."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the bundle."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `whiten.json`; docs/bundle-format.md is its specification."""

    format_version: int
    name: str
    source: Source
    input: Input = "text"
    """What the graph takes: token ids of texts, or vectors from elsewhere."""
    layers: tuple[int, ...]
    """Indices into the hidden states: 0 is the embedding layer, l the output of block l; none for vectors."""
    pooling: Pooling | None
    """None for vectors."""
    whitening: WhiteningRecord | None
    normalize: bool
    """Whether the graph divides each vector by its L2 norm."""
    dimension: int
    max_seq_length: int
    """Tokens, special tokens included; longer texts are cut. 0 for vectors."""
    pad_token_id: int
    precision: Precision
    opset: int
    versions: dict[str, str]
    parity: ParityRecord | None
    """None only while a bundle is being made."""
    files: dict[str, FileRecord]
    """POSIX paths relative to the bundle, all files but this one."""

    def to_json(self) -> bytes:
        """Serialise with two-space indentation and a final newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class _Version(msgspec.Struct, frozen=True):
    format_version: int


def read_manifest(bundle: Path) -> Manifest:
    """Read and check `whiten.json` in a bundle directory.

    Raises:
        BundleError: the directory or the file is missing, is not a manifest, or is of a newer format.
    """
    path = bundle / MANIFEST_FILE
    if not bundle.is_dir():
        what = "is not a directory" if bundle.exists() else "does not exist"
        raise BundleError(f"bundle '{bundle}' {what}; make one with whiten-export, or check the path")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(
            f"'{bundle}' is not a whiten bundle: it has no {MANIFEST_FILE}; make one with whiten-export"
        ) from None
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}; check the file's permissions") from error
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{path}: bundle format {version}, but this version of whiten reads format {FORMAT_VERSION}; "
                f"{'upgrade whiten' if version > FORMAT_VERSION else 'export the model again'}"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.ValidationError as error:
        raise BundleError(
            f"{path}: not a manifest that this version of whiten understands ({error}); upgrade whiten, or export the "
            "model again"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{path}: not a manifest ({error}); export the model again") from None
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    for name in manifest.files:
        parts = PurePosixPath(name)
        if not name or parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name:
            raise BundleError(f"{path}: file name {name!r} would leave the bundle; the manifest was tampered with")
    least = {"dimension": 1, "max_seq_length": 1 if manifest.input == "text" else 0, "pad_token_id": 0}
    for field, bound in least.items():
        if (value := getattr(manifest, field)) < bound:
            raise BundleError(f"{path}: {field} is {value}, which must be at least {bound}")
