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
Target = Literal["cpu", "cuda"]
WhiteningMethod = Literal["pca", "zca", "cholesky", "zca-cor", "pca-cor", "none"]
Outputs = Literal["whitened", "both"]

NESTED_METHODS = frozenset({"pca", "pca-cor"})
"""Methods whose first m columns are the whitening to m dimensions."""


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


class IsotropyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly vectors of the corpus use their space."""

    iso_score: float
    """Over all of them: 0 along one direction, 1 in all alike."""
    average_cosine: float
    """Over all pairs: before the map, of all vectors; after it, of the sample."""
    partition_score: float
    """Over the sample's unit vectors; 1 is isotropic."""


class WhiteningRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How the affine map y = (x - mean) W at the end of the graph was fitted."""

    method: WhiteningMethod
    """"none": the map only takes away common components."""
    common_components: int = 0
    """Directions that were taken away before, those of the largest second moment (SIF)."""
    beta: float
    """Exponent of the inverse eigenvalues: W = U Λ^(-beta/2); 1 is full whitening."""
    shrinkage: float
    """Weight α of the identity in (1 - α) Σ + α tr(Σ)/d I."""
    shrinkage_estimator: str = "none"
    """What gave α: "ledoit-wolf", "oas", "fixed", or "none"."""
    eigenvalue_floor: float
    """Relative to the largest eigenvalue."""
    rank: int
    """Eigenvalues above the floor."""
    n_samples: int
    corpus: tuple[CorpusRecord, ...]
    sample: int = 0
    """Vectors in the sample that isotropy is measured on."""
    isotropy_before: IsotropyRecord | None = None
    isotropy_after: IsotropyRecord | None = None
    """Of the same vectors before and after the map."""


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A whitening that was tried on pairs with scores."""

    whitening: Literal["none", "centre", "partial", "full"]
    beta: float | None
    """None without whitening."""
    dimension: int
    spearman: float
    """Between cosines and scores."""


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why the whitening is what it is, where it was left to the export."""

    why: str
    pairs: CorpusRecord | None = None
    """Pairs with scores that decided; `sentences` counts the pairs."""
    candidates: tuple[CandidateRecord, ...] = ()


class ParityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of the written graph with the PyTorch reference, measured at export."""

    reference: str
    vectors: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    """Largest |difference| of any coordinate, divided by the norm of the reference vector."""
    provider: str = "CPUExecutionProvider"
    """onnxruntime's execution provider that computed them."""


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
    choice: ChoiceRecord | None = None
    """Of the whitening, if it was "auto"."""
    normalize: bool
    """Whether the graph divides each vector by its L2 norm."""
    outputs: Outputs = "whitened"
    """"both": the graph gives the vector before whitening too."""
    dimension: int
    max_seq_length: int
    """Tokens, special tokens included; longer texts are cut. 0 for vectors."""
    pad_token_id: int
    precision: Precision
    target: Target = "cpu"
    """"cuda": operators are fused for NVIDIA's GPUs, which needs onnxruntime's own operators."""
    opset: int
    versions: dict[str, str]
    parity: ParityRecord | None
    """None only while a bundle is being made."""
    files: dict[str, FileRecord]
    """POSIX paths relative to the bundle, all files but this one."""

    @property
    def nested(self) -> bool:
        """Whether the first m coordinates of a vector are the vector whitened to m dimensions."""
        return self.whitening is not None and self.whitening.method in NESTED_METHODS

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
