"""Read and check the manifest, `whiten.json`: source, layers, pooling, whitening, parity and files of a bundle."""

import re
from pathlib import Path, PurePosixPath
from typing import Literal, cast, get_args

import msgspec

from whiten_runtime.errors import BundleError, UsageError

FORMAT_VERSION = 1
MANIFEST_FILE = "whiten.json"
SPACE_DIGITS = 16
"""Number of hexadecimal digits of the id of a space."""

Input = Literal["text", "vectors"]
PoolingMode = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len", "cls_avg", "pooler", "sif"]
Pooling = str
"""A pooling mode, or several joined by "+", whose results are concatenated, such as "cls+mean"."""

Precision = Literal["fp32", "fp16", "int8"]
Target = Literal["cpu", "cuda"]
WhiteningMethod = Literal["pca", "zca", "cholesky", "zca-cor", "pca-cor", "none"]
Outputs = Literal["whitened", "both"]
VectorType = Literal["float32", "int8"]
Side = Literal["right", "left"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
"""Precision of the numbers of a vector, as sentence-transformers names them; with the last two, 8 signs are a byte."""

NESTED_METHODS = frozenset({"pca", "pca-cor"})
"""Methods whose first m columns are the whitening to m dimensions."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the pretrained language model, word vectors or precomputed embeddings that a bundle was made from."""

    model: str
    """Name in the catalogue, or name of the directory or repository."""
    checkpoint: str | None
    """Hub id, or None for a local directory."""
    revision: str | None
    """Commit on the hub, where known."""
    weights_sha256: str
    """SHA-256 over the weight files, in the order of their names."""
    merged_into: str | None = None
    """Model that a LoRA adapter was merged into, if the weights are those of an adapter; otherwise None."""
    model_type: str
    """Architecture, as transformers names it; "words" for word vectors, "vectors" for precomputed embeddings."""
    num_hidden_layers: int
    hidden_size: int
    sentence_similarity: bool
    """Whether the checkpoint was already fine-tuned for sentence similarity."""
    license: str | None = None
    """Licence of the weights as the source's README.md or the catalogue states it, in the hub's spelling; None where
    neither does."""


class CorpusRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes one source of the sentences that a whitening was fitted on."""

    name: str
    sha256: str
    """SHA-256 over the sentences used, in the order in which they were read, each followed by a newline, as UTF-8."""
    sentences: int
    fitted_at: Precision | None = None
    """Precision of the graph that computed their vectors, if not fp32; otherwise None."""


class SettledRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Explains why a whitening was fitted on a part of its corpus: more sentences would not have moved it."""

    available: int
    """Number of sentences of the corpus."""
    difference: float
    """Root mean square difference between cosines of other sentences under maps fitted on either half of those used."""
    bound: float
    """Difference below which the fit stops."""


class IsotropyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds measures of isotropy: how evenly the vectors of the corpus use their space."""

    iso_score: float
    """IsoScore over all vectors: 0 if they lie along one direction, 1 if they vary equally in all directions."""
    average_cosine: float
    """Mean cosine over all pairs: before the whitening, pairs of all vectors; after it, pairs of the sample."""
    partition_score: float
    """Partition score over the sample's unit vectors; 1 is isotropic."""


DUE_COSINE, DUE_RECALL = 0.9, 0.95
"""Median cosine and self-recall below which stored vectors should be computed again."""


class AlignmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes how a map was rotated onto the space of another bundle, and how near it came."""

    space: str
    """Id of the space that the map was rotated onto."""
    median_cosine: float
    """Median cosine of the same sentence in both spaces."""
    self_recall: float
    """Share of the sentences whose nearest vector in the other space is their own."""
    sentences: int
    """Number of sentences that both were measured on."""

    @property
    def due(self) -> bool:
        """Return whether stored vectors should be computed again."""
        return self.median_cosine < DUE_COSINE or self.self_recall < DUE_RECALL


class WhiteningRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the affine map y = (x - mean) W at the end of the graph, and how it was fitted."""

    method: WhiteningMethod
    """Whitening method; "none" if the map only removes common components."""
    common_components: int = 0
    """Number of directions removed before whitening: of the largest second moment (SIF), or variance."""
    beta: float
    """Exponent of the inverse eigenvalues: W = U Λ^(-beta/2); 1 is full whitening."""
    shrinkage: float
    """Weight α of the identity in (1 - α) Σ + α tr(Σ)/d I."""
    shrinkage_estimator: str = "none"
    """Source of α: "ledoit-wolf", "oas", "fixed", or "none" without shrinkage."""
    eigenvalue_floor: float
    """Smallest eigenvalue that counts, relative to the largest one."""
    rank: int
    """Number of eigenvalues above the floor."""
    n_samples: int
    settled: SettledRecord | None = None
    """Why the fit stopped before the end of the corpus; None if it took all sentences that it was to take."""
    corpus: tuple[CorpusRecord, ...]
    sample: int = 0
    """Number of vectors in the sample that isotropy is measured on."""
    isotropy_before: IsotropyRecord | None = None
    isotropy_after: IsotropyRecord | None = None
    """Isotropy of the same vectors before and after the map."""
    alignment: AlignmentRecord | None = None
    """Rotation of the map onto another bundle's space; None without one."""


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one candidate whitening and its result on pairs with scores."""

    whitening: str
    """Kind: "none", "centre", "partial", "full", "soft" or "all-but-the-top"."""
    beta: float | None
    """Exponent of the inverse eigenvalues; None without whitening."""
    shrinkage: float = 0.0
    """Weight of the shrinkage."""
    common_components: int = 0
    """Number of directions of the largest variance that are removed."""
    dimension: int
    spearman: float
    """Spearman's rho between cosines and scores."""


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Explains how the whitening was chosen, where the choice was left to the export."""

    why: str
    pairs: CorpusRecord | None = None
    """Pairs with scores that the choice was made on; `sentences` counts the pairs."""
    candidates: tuple[CandidateRecord, ...] = ()


class ParityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the agreement of the written graph with the reference, measured at export."""

    reference: str
    vectors: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    """Largest |difference| of any coordinate, divided by the norm of the reference vector."""
    max_norm_error: float | None = None
    """Largest |norm / norm of the reference vector - 1|; None for int8 vectors, which have no length, and in bundles
    that were made before it was measured."""
    mean_norm_error: float | None = None
    """Mean of the same; None where that is."""
    provider: str = "CPUExecutionProvider"
    """Execution provider of onnxruntime that computed the vectors."""
    stepped: float | None = None
    """Of int8 vectors, the share of coordinates that are not the reference's, rounded; None for float32."""


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the scales of an int8 graph, and its cosines to float32 on texts unlike those it was calibrated on."""

    constant_scales: int
    """Number of activations with one constant scale; a text's vector depends on its neighbours with neither kind."""
    token_scales: int
    """Number of activations with a scale for each token."""
    far_min_cosine: float
    far_mean_cosine: float
    """Cosines to the float32 graph on texts in other scripts, code, random and repeated tokens."""
    token_min_cosine: float
    """Worst cosine there if every activation had a scale for each token, and weights were rounded to the nearest."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size and SHA-256 of one file of the bundle."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Represents the content of `whiten.json`; docs/bundle-format.md is its specification."""

    format_version: int
    name: str
    space: str | None = None
    """Id of the space of the vectors; None in bundles that were made before it was stored (`space.space_of`)."""
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
    outputs: Outputs = "whitened"
    """Outputs of the graph; with "both", it returns the vector before whitening too."""
    vectors: VectorType = "float32"
    """Type in which the finished vectors can be stored without loss; the graph gives float32 for both. With "int8" they
    are whole numbers from -127 to 127, with one scale for each vector (`bundle.steps`)."""
    dimension: int
    max_seq_length: int
    """Maximum number of tokens, special tokens included; longer texts are truncated. 0 for vectors."""
    pad_token_id: int
    precision: Precision
    target: Target = "cpu"
    """Target of the graph; for "cuda", operators are fused for NVIDIA GPUs, which needs onnxruntime's own operators."""
    quantization: QuantizationRecord | None = None
    """Scales of an int8 graph; None for other precisions, and in bundles that were made before it was stored."""
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
        """Serialise with two-space indentation and a final newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def pooling_modes(pooling: Pooling) -> tuple[PoolingMode, ...]:
    """Return the modes of a pooling, in the order in which their results are concatenated.

    Raises:
        UsageError: a mode is unknown or given twice, or "sif" is combined with another.
    """
    modes = pooling.split("+")
    known = get_args(PoolingMode)
    if unknown := [mode for mode in modes if mode not in known]:
        raise UsageError(f"pooling is '{unknown[0]}'; wanted {', '.join(known)}, or several joined by +")
    if len(set(modes)) < len(modes) or ("sif" in modes and len(modes) > 1):
        raise UsageError(f"pooling is '{pooling}'; wanted different modes, and sif alone")
    return cast(tuple[PoolingMode, ...], tuple(modes))


def is_space(value: str) -> bool:
    """Return whether a string is the id of a space: 16 lower-case hexadecimal digits."""
    return re.fullmatch(f"[0-9a-f]{{{SPACE_DIGITS}}}", value) is not None


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
        if not name.isprintable():
            raise BundleError(f"{path}: file name {name!r} has control characters; the manifest was tampered with")
    alignment = manifest.whitening and manifest.whitening.alignment
    for space in (manifest.space, alignment.space if alignment else None):
        if space is not None and not is_space(space):
            raise BundleError(f"{path}: space is {space!r}; wanted {SPACE_DIGITS} hexadecimal digits; export it again")
    least = {"dimension": 1, "max_seq_length": 1 if manifest.input == "text" else 0, "pad_token_id": 0}
    for field, bound in least.items():
        if (value := getattr(manifest, field)) < bound:
            raise BundleError(f"{path}: {field} is {value}, which must be at least {bound}")
    try:
        pooling_modes("mean" if manifest.pooling is None else manifest.pooling)
    except UsageError as error:
        raise BundleError(f"{path}: {error}; upgrade whiten, or export the model again") from None
    if manifest.vectors == "int8" and (manifest.normalize or manifest.similarity_fn_name != "cosine"):
        raise BundleError(
            f"{path}: its vectors are int8, which keep cosines alone, but it says normalize {manifest.normalize}, "
            f"similarity {manifest.similarity_fn_name}; export it again"
        )
    default = manifest.default_prompt_name
    if default is not None and default not in manifest.prompts:
        raise BundleError(
            f"{path}: default_prompt_name is '{default}', which is not one of its prompts; export it again"
        )
    if manifest.layer_weights is not None and len(manifest.layer_weights) != len(manifest.layers):
        raise BundleError(f"{path}: has {len(manifest.layer_weights)} layer_weights for {len(manifest.layers)} layers")
