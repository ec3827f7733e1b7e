"""Define the records that the manifest, `whiten.json`, is made of, and the words that its fields may hold."""

import re
from typing import Literal, cast, get_args

import msgspec

from whiten_runtime.errors import UsageError

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
