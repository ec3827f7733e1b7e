"""Read and check the manifest, `whiten.json`: its records, and the words that their fields may hold."""

import json
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast, get_args

import msgspec

from whiten_runtime.bundle.files import HASH_FIELD, MANIFEST_BYTES, own_hash, read_file, with_hash_field
from whiten_runtime.errors import BundleError, IntegrityError, UsageError, kind_of_place

Input = Literal["text", "vectors"]
PoolingMode = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len", "cls_avg", "pooler", "sif"]
Pooling = str
"""A pooling mode, or several joined by "+", whose results are concatenated, such as "cls+mean"."""

Precision = Literal["fp32", "fp16", "int8"]
Target = Literal["cpu", "cuda"]
WhiteningMethod = Literal["pca", "zca", "cholesky", "zca-cor", "pca-cor", "none"]
Side = Literal["right", "left"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
"""Precision of the numbers of a vector, as sentence-transformers names them; with the last two, 8 signs are a byte."""

SPACE_DIGITS = 16
"""Number of hexadecimal digits of the id of a space."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pretrained language model, word vectors or precomputed embeddings that a bundle was made from."""

    model: str
    """Name in the catalogue, or name of the directory or repository."""
    checkpoint: str | None
    """Hub id, or None for a local directory."""
    revision: str | None
    """Commit on the hub, where known."""
    weights_sha256: str
    """SHA-256 over the weight files, in the order of their names."""
    parameters_sha256: str | msgspec.UnsetType = msgspec.UNSET
    """SHA-256 over the parameters of the network that hidden states depend on, in float32 and in the order of its
    modules, of a LoRA adapter and of the modules behind the pooling: files that were saved again have the same. Absent
    where the weights are no network's, and in bundles before it."""
    network_sha256: str | msgspec.UnsetType = msgspec.UNSET
    """SHA-256 over the settings of `config.json`, and of a LoRA adapter, that decide hidden states and differ from
    their defaults, and over the checkpoint's own Python code that ran; of a model2vec table, over how unknown tokens
    count. Absent where the weights are all (ONNX encoders, other tables of vectors), and in bundles before 0.5."""
    former_network_sha256: str | msgspec.UnsetType = msgspec.UNSET
    """The same hash by the former rule, over all settings as `config.json` spells them: by it, bundles that were made
    before, and vectors stored with their ids, are recognised. Absent where there is no `network_sha256`."""
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
    ignored_code: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Files of the checkpoint's own Python code that did not run: transformers' classes are in its place. Absent where
    there are none."""
    remote_code: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Files of the checkpoint's own Python code that ran; those of another repository as ORG/NAME@COMMIT/FILE. Absent
    where there are none."""
    left_out: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Classes of the authors' modules behind the pooling that the caller of the export left out. Absent where there
    are none."""


class CorpusRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One source of the sentences that a whitening was fitted on."""

    name: str
    sha256: str
    """SHA-256 over the sentences used, in the order in which they were read, each followed by a newline, as UTF-8."""
    sentences: int
    """Number of sentences used."""
    available: int | None = None
    """Number of sentences of the source, if only some of them were used; otherwise None."""
    fitted_at: Precision | None = None
    """Precision of the graph that computed their vectors, if not fp32; otherwise None."""


class IsotropyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measures of isotropy: how evenly the vectors of the corpus use their space."""

    iso_score: float
    """IsoScore over all vectors: 0 if they lie along one direction, 1 if they vary equally in all directions."""
    average_cosine: float
    """Mean cosine over all pairs: before the whitening, pairs of all vectors; after it, pairs of the sample."""
    partition_score: float
    """Partition score over the sample's unit vectors; 1 is isotropic."""


DUE_COSINE, DUE_RECALL = 0.9, 0.95
"""Median cosine and self-recall below which stored vectors should be computed again."""


class AlignmentRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how a map was rotated onto the space of another bundle, and how near it came."""

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

    @property
    def description(self) -> str:
        """Return in words how near the map came."""
        return f"median cosine {self.median_cosine:.3f}, {100 * self.self_recall:.1f} % find themselves"


class WhiteningRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Affine map y = (x - mean) W at the end of the graph, and how it was fitted."""

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
    settled: dict[str, float] | msgspec.UnsetType | None = msgspec.UNSET
    """Written by 0.3 and 0.4, where a fit could stop before the end of its corpus. Nothing reads it."""
    corpus: tuple[CorpusRecord, ...]
    prompt_name: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the prompt that each sentence of the corpus got. Absent where they got the bundle's default one."""
    sample: int = 0
    """Number of vectors in the sample that isotropy is measured on."""
    isotropy_before: IsotropyRecord | None = None
    isotropy_after: IsotropyRecord | None = None
    """Isotropy of the same vectors before and after the map."""
    alignment: AlignmentRecord | None = None
    """Rotation of the map onto another bundle's space; None without one."""

    @property
    def isotropy_scores(self) -> dict[str, tuple[float, float]]:
        """Return the scores before and after the map by their names; none where they were not measured."""
        before, after = self.isotropy_before, self.isotropy_after
        if before is None or after is None:
            return {}
        return {
            "IsoScore": (before.iso_score, after.iso_score),
            "average cosine": (before.average_cosine, after.average_cosine),
            "partition score": (before.partition_score, after.partition_score),
        }

    @property
    def description(self) -> str:
        """Return the kind of whitening in words, such as "soft whitening, shrinkage 0.5" or "full whitening (pca)"."""
        details: list[str] = []
        if self.method == "none":
            kind = "not whitened"
        elif self.beta == 0:
            kind = "centred only"
        else:
            name = "partial" if self.beta < 1 else "soft" if self.shrinkage else "full"
            by = "" if self.shrinkage_estimator in ("none", "fixed") else f" by {self.shrinkage_estimator}"
            kind = f"{name} whitening"
            details = [f"beta {self.beta:g}"] if self.beta < 1 else []
            details += [f"shrinkage {self.shrinkage:.3g}{by}"] if self.shrinkage else []
        if self.common_components:
            plural = "s" if self.common_components > 1 else ""
            details.append(f"{self.common_components} common component{plural} removed")
        usual = self.method == "none" or (self.method == "pca" and kind in ("soft whitening", "centred only"))
        return ", ".join([kind if usual else f"{kind} ({self.method})", *details])


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One candidate whitening and its result on pairs with scores."""

    whitening: str
    """Kind: "none", "centre", "partial", "full", "soft" or "all-but-the-top"."""
    beta: float | None
    """Exponent of the inverse eigenvalues; None without whitening."""
    shrinkage: float = 0.0
    """Weight of the shrinkage."""
    common_components: int = 0
    """Number of directions of the largest variance that are removed."""
    dimension: int
    spearman: float | msgspec.UnsetType = msgspec.UNSET
    """Spearman's rho between cosines and scores; absent where documents are searched."""
    ndcg_at_10: float | msgspec.UnsetType = msgspec.UNSET
    """nDCG@10 of the search, the mean over queries and then over collections; absent where pairs decide."""


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Explains how the whitening was chosen, where the choice was left to the export."""

    why: str
    pairs: CorpusRecord | None = None
    """Pairs with scores that the choice was made on; `sentences` counts the pairs."""
    collections: tuple[CorpusRecord, ...] | msgspec.UnsetType = msgspec.UNSET
    """Collections whose search the choice was made on; `sentences` counts the queries. Absent where there are none."""
    candidates: tuple[CandidateRecord, ...] = ()


class ParityRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agreement of the written graph with the reference, measured at export."""

    reference: str
    vectors: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    """Largest |difference| of any coordinate, divided by the norm of the reference vector."""
    max_norm_error: float
    """Largest |norm / norm of the reference vector - 1|."""
    mean_norm_error: float
    """Mean of the same."""
    provider: str = "CPUExecutionProvider"
    """Execution providers of onnxruntime that computed the vectors, with their options, as `--device` takes them."""
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Number of tokens of the longest text that was compared; absent in bundles of 0.4 and where vectors come in."""


SHORT = 512
"""Number of tokens of a batch's longest text up to which graphs compute attention at once. The memory of such texts is
little, and is not counted, whatever sessions hold."""


class TextMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Estimate of the memory that a text takes on a CPU, besides the weights."""

    token_bytes: int
    """Bytes for each token."""
    pair_bytes: int
    """Bytes for each pair of tokens; 0 where attention is computed in blocks."""

    def of(self, tokens: int, texts: int = 1) -> int:
        """Return the bytes of a batch of texts of so many tokens each, padding included."""
        return texts * (tokens * self.token_bytes + tokens**2 * self.pair_bytes)

    def in_words(self, longest: int) -> str:
        """Return what texts of 512 and 2,048 tokens and of the maximum length take."""
        lengths = dict.fromkeys(min(tokens, longest) for tokens in (SHORT, 2048, longest))
        return ", ".join(f"{tokens:,} tokens about {_megabytes(self.of(tokens))}" for tokens in lengths)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"


LARGEST_PAIR = 128
"""Largest sum of the magnitudes of weights 2i and 2i + 1 of a column of one sign that saturates nowhere.

On x86 processors without VNNI, onnxruntime adds the products of both with uint8 activations in 16 bits: 255 * 128 is
32,640, and the largest number there 32,767.
"""


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scales of an int8 graph, and its cosines to float32 on far texts, by which constant scales are chosen too."""

    constant_scales: int
    """Number of activations with one constant scale; a text's vector depends on its neighbours with neither kind."""
    token_scales: int
    """Number of activations with a scale for each token."""
    far_min_cosine: float
    far_mean_cosine: float
    """Cosines to the float32 graph on texts in other scripts, code, random and repeated tokens."""
    token_min_cosine: float
    """Worst cosine there if every activation had a scale for each token, and weights were rounded to the nearest."""
    largest_pair: int
    """Largest sum of the magnitudes of weights 2i and 2i + 1 of a column that have one sign, over all products.
    Up to `LARGEST_PAIR`, every kernel gives the same sums."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and SHA-256 of one file of the bundle."""

    sha256: str
    bytes: int


def pooling_modes(pooling: Pooling) -> tuple[PoolingMode, ...]:
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
    max_characters: int | msgspec.UnsetType = msgspec.UNSET
    """Characters of a text beyond which it is cut before it is tokenised, where the authors' program cuts so."""
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
    most = manifest.max_characters
    if most is not msgspec.UNSET and not 1 <= most < 1 << 31:
        raise BundleError(f"{path}: max_characters is {most}; wanted 1 to {(1 << 31) - 1}; export it again")
    for field, least in LEAST.items():
        bound = 0 if (manifest.input, field) == ("vectors", "max_seq_length") else least
        if not bound <= (value := getattr(manifest, field)) < 1 << 31:
            raise BundleError(f"{path}: {field} is {value}; wanted {bound} to {(1 << 31) - 1}; export it again")
    try:
        pooling_modes("mean" if manifest.pooling is None else manifest.pooling)
    except UsageError as error:
        raise BundleError(f"{path}: {error}; upgrade whiten, or export the model again") from None
