"""Hold the statistics of a corpus's vectors, compute them, and save them to a file."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tokenizers import Tokenizer

from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.files import SentenceDigest
from whiten_runtime.bundle.manifest import CorpusRecord, Input, Manifest, Pooling, Precision, read_manifest
from whiten_runtime.errors import BundleError, DataError, NoVectorError, UsageError, check_file, encodable, one_line
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.replacing import replace_file
from whiten_runtime.hub import locate_bundle
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.engine import Advance, no_progress
from whiten_runtime.inference.loading import load_unwhitened
from whiten_runtime.inference.options import EncodeOptions
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import ADVISED_RATIO, WhiteningMap, WhiteningSpec, fit_map, fit_sif
from whiten_whitening.moments import Float64Array, Keys, Moments, Sample, row_keys, text_keys

FORMAT = 1


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Model that computed the vectors; statistics of different origins cannot be merged."""

    model: str
    weights_sha256: str
    parameters_sha256: str | None = None
    """Hash of the network's parameters, whatever their files; None where it is not known."""
    network_sha256: str | None = None
    """Hash of the network's config and code; None where the weights are all, and of bundles before 0.5."""
    former_network_sha256: str | None = None
    """The same hash by the former rule; None where the bundle has none."""
    tokenizer_sha256: str
    """Hash of what the tokenizer does; of the bytes of its file for bundles before 0.5."""
    input: Input
    layers: tuple[int, ...]
    pooling: Pooling | None
    max_seq_length: int
    layer_weights: tuple[float, ...] | None = None
    include_prompt: bool = True
    modules: tuple[str, ...] = ()
    prompt: str = ""
    """Prompt that every sentence got."""
    max_characters: int | None = None
    """Characters beyond which a sentence was cut; None where only tokens count."""
    precision: Precision
    """Precision of the graph that computed the vectors; it changes them little, and is not compared."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Origin":
        source = manifest.source
        tokenizer = manifest.files.get(TOKENIZER_FILE)
        return cls(
            model=source.model,
            weights_sha256=source.weights_sha256,
            parameters_sha256=source.parameters_sha256 or None,
            network_sha256=source.network_sha256 or None,
            former_network_sha256=source.former_network_sha256 or None,
            tokenizer_sha256=manifest.tokenizer_sha256 or (tokenizer.sha256 if tokenizer else ""),
            input=manifest.input,
            layers=manifest.layers,
            pooling=manifest.pooling,
            max_seq_length=manifest.max_seq_length,
            layer_weights=manifest.layer_weights,
            include_prompt=manifest.include_prompt,
            modules=manifest.modules,
            prompt=manifest.prompts.get(manifest.default_prompt_name or "", ""),
            max_characters=manifest.max_characters or None,
            precision=manifest.precision,
        )

    def difference(self, other: "Origin") -> str | None:
        """Return the first field in which two origins differ, with both values, or None; names of models may differ."""
        equal = {"model", "precision", "former_network_sha256", "parameters_sha256"}
        if self._networks & other._networks:
            equal.add("network_sha256")
        if self.parameters_sha256 is not None and self.parameters_sha256 == other.parameters_sha256:
            equal.add("weights_sha256")
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and name not in equal:
                return f"{name} {_shown(mine)} and {_shown(theirs)}"
        return None

    @property
    def _networks(self) -> set[str]:
        return {digest for digest in (self.network_sha256, self.former_network_sha256) if digest}


@dataclass(frozen=True)
class Statistics:
    moments: Moments  # moments of all vectors
    sample: Sample  # sample of the vectors, on which cosines can be measured before and after a map
    corpus: tuple[CorpusRecord, ...] = ()  # sources of the sentences, in order

    @classmethod
    def empty(cls, width: int) -> "Statistics":
        return cls(Moments.empty(width), Sample.empty(width))

    def fitted_at(self, precision: Precision) -> "Statistics":
        stated = None if precision == "fp32" else precision
        return replace(self, corpus=tuple(msgspec.structs.replace(corpus, fitted_at=stated) for corpus in self.corpus))

    def merge(self, other: "Statistics") -> "Statistics":
        mine, theirs = len(self.moments.mean), len(other.moments.mean)
        if mine != theirs:
            raise UsageError(f"vectors of {mine} and {theirs} dimensions cannot be merged")
        sample = self.sample.add(other.sample.keys, other.sample.vectors)
        return Statistics(self.moments.merge(other.moments), sample, self.corpus + other.corpus)


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    origin: Origin
    corpus: tuple[CorpusRecord, ...]


def save_statistics(path: Path, statistics: Statistics, origin: Origin) -> None:
    """Write statistics as safetensors; the file appears when it is complete."""
    header = _Header(format=FORMAT, origin=origin, corpus=statistics.corpus)
    arrays = statistics.moments.to_arrays()
    arrays |= {"sample.keys": statistics.sample.keys, "sample.vectors": statistics.sample.vectors}
    content = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={"whiten": msgspec.json.encode(header).decode()},
    )
    replace_file(path, content, "another --out")


def load_statistics(path: Path) -> tuple[Statistics, Origin]:
    check_file(path, "make it with whiten fit")
    try:
        with safe_open(path, "numpy") as file:
            header = msgspec.json.decode((file.metadata() or {})["whiten"], type=_Header)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        moments = Moments.from_arrays(arrays)
        sample = Sample(arrays["sample.keys"], arrays["sample.vectors"])
        if (kinds := (str(sample.keys.dtype), str(sample.vectors.dtype))) != ("uint64", "float32"):
            raise ValueError(f"a sample of {' and '.join(kinds)}")
        if sample.vectors.shape != (len(sample.keys), len(moments.mean)) or not np.isfinite(sample.vectors).all():
            raise ValueError("its sample does not fit its moments")
    except (OSError, SafetensorError, msgspec.DecodeError, KeyError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a file of whiten fit ({error}); make it again") from None
    if header.format != FORMAT:
        raise DataError(f"{path}: statistics of format {header.format}; this version of whiten reads {FORMAT}")
    return Statistics(moments, sample, header.corpus), header.origin


def _shown(value: object) -> str:
    return "none" if value is None else f"'{value[:12]}'" if isinstance(value, str) else str(value)


Window = tuple[Keys, NDArray[np.float32]]


def gather(windows: Iterable[Window], start: Statistics) -> Statistics:
    """Return statistics with those of more windows of vectors, float32 [m, d], each with its sampling keys."""
    moments, sample = start.moments, start.sample
    for keys, vectors in windows:
        moments, sample = moments.merge(Moments.of(vectors)), sample.add(keys, vectors)
    return Statistics(moments, sample, start.corpus)


def fit_corpus(
    corpus: Corpus, embedder: Embedder, advance: Advance = no_progress, options: EncodeOptions | None = None
) -> Statistics:
    """Return the statistics of the sentences' vectors before whitening, which enter in windows of fixed size."""
    windows = embed_windows(corpus, embedder, advance, place_of=corpus.place_of, options=options)
    statistics = gather(windows, Statistics.empty(embedder.width))
    return replace(statistics, corpus=corpus.records)


def fit_statistics(
    path: str | Path,
    corpus: Corpus,
    out: Path | None = None,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
) -> Statistics:
    """Return the statistics of the vectors before whitening that a bundle computes of a corpus; write them to `out`."""
    report = reporter or Reporter()
    path = locate_bundle(path)
    manifest = read_manifest(path)
    check_takes_texts(path, manifest)
    sentences = corpus.count()
    warn_of_corpus(corpus, sentences, path, manifest, report)
    report.stage(f"fitting on {sentences:,} sentences")
    bundle, embedder = load_unwhitened(path, options)
    with embedder, report.bar("sentences", sentences) as advance:
        statistics = fit_corpus(corpus, embedder, advance)
    statistics = statistics.fitted_at(bundle.manifest.precision)
    if out is not None:
        save_statistics(out, statistics, Origin.of(bundle.manifest))
    return statistics


def warn_of_repeats(corpus: Corpus, sentences: int, width: int, report: Reporter) -> int:
    """Return how many of a corpus's sentences count: the different ones, where those are few; warn of them then.

    Args:
        corpus: sentences to fit on.
        sentences: number of them.
        width: number of coordinates of a vector before whitening.
        report: receives the warning.
    """
    needed = min(sentences, ADVISED_RATIO * width)
    texts, patterns = corpus.count_different(needed)
    if 2 * patterns < needed:
        different = f"only {texts:,} differ" if texts < needed else "many differ in nothing but numbers"
        alike = f", {patterns:,} if numbers in them do not count" if patterns < texts else ""
        report.warn(
            f"of the {sentences:,} sentences {different}{alike}: a whitening of {width} dimensions wants "
            f"{ADVISED_RATIO * width:,} that say different things"
        )
    return texts if texts < needed else sentences


_MOST_UNKNOWN = 0.5
"""Share of unknown tokens above which a warning is due; all-MiniLM-L6-v2 has none in English."""

READ_SENTENCES = 512
"""Number of sentences of a corpus whose tokens are looked at."""


_READ_CHARACTERS = 10_000
"""Characters of such a sentence that are looked at: one may be a whole document."""


def count_unknown(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[int, int]:
    """Return how many tokens of texts are the unknown one, and how many there are without special ones."""
    model = json.loads(tokenizer.to_str())["model"]
    token = model.get("unk_token")
    unknown = model.get("unk_id") if token is None else tokenizer.token_to_id(token)
    specials = {number for number, added in tokenizer.get_added_tokens_decoder().items() if added.special} - {unknown}
    beginnings = [encodable(text[:_READ_CHARACTERS]) for text in texts]
    rows = tokenizer.encode_batch(beginnings, add_special_tokens=False)
    ids = [number for row in rows for number in row.ids if number not in specials]
    return 0 if unknown is None else ids.count(unknown), len(ids)


def warn_of_unknown(texts: Sequence[str], what: str, tokenizer: Tokenizer, report: Reporter) -> None:
    """Warn if most tokens of texts are unknown to a model's tokenizer, so that vectors say little of them.

    Raises:
        BundleError: the tokenizer fails on them.
    """
    try:
        unknown, count = count_unknown(tokenizer, texts)
    except Exception as error:  # tokenizers raises Exception itself
        raise BundleError(f"the tokenizer fails on {what} ({one_line(error)}); copy it again") from None
    if unknown > _MOST_UNKNOWN * count:
        report.warn(
            f"{unknown:,} of the {count:,} tokens of {len(texts):,} sentences of {what} are unknown to the model's "
            "tokenizer, and have one vector: check that it is the right tokenizer, with the right casing; if the model "
            "is for other texts than sentences, compare its vectors of those yourself"
        )


def warn_of_corpus(corpus: Corpus, sentences: int, bundle: Path, manifest: Manifest, report: Reporter) -> int:
    """Return how many of a corpus's sentences count; warn of repeats, and of words that a bundle does not know."""
    try:
        tokenizer = Tokenizer.from_file(str(bundle / TOKENIZER_FILE))
    except Exception as error:  # tokenizers raises Exception itself
        raise BundleError(f"{bundle / TOKENIZER_FILE}: not a tokenizer ({one_line(error)})") from None
    warn_of_unknown(list(islice(corpus, READ_SENTENCES)), "the corpus", tokenizer, report)
    return warn_of_repeats(corpus, sentences, manifest.unwhitened_width, report)


def check_takes_texts(path: str | Path, manifest: Manifest) -> None:
    """Raise UsageError if a bundle takes vectors instead of texts."""
    if manifest.input != "text":
        raise UsageError(f"{path}: takes vectors, not texts; fit it anew with whiten-export --from-vectors")


def embed_windows(
    sentences: Iterable[str],
    embedder: Embedder,
    advance: Advance,
    done: int = 0,
    digest: SentenceDigest | None = None,
    *,
    place_of: Callable[[str], str],
    options: EncodeOptions | None = None,
) -> Iterator[Window]:
    """Yield the vectors of windows of sentences, each with its sampling keys.

    `place_of` returns the file and line of a sentence, for the error of one that gets no vector.
    """
    windows = embedder.windows(sentences, replace(options or embedder.options, finite=True), advance, WINDOW)
    for texts, vectors in _placed(windows, place_of):
        if digest is not None:
            for text in texts:
                digest.add(text)
        keys = text_keys(texts) ^ row_keys(done, len(texts))  # distinct keys for a sentence that occurs twice
        done += len(texts)
        yield keys, vectors


def _placed(
    windows: Iterator[tuple[list[str], NDArray[np.float32]]], place_of: Callable[[str], str]
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Yield windows of a corpus; name the line of a sentence that gets no vector."""
    try:
        yield from windows
    except NoVectorError as error:
        text = error.text or ""
        place = place_of(text)
        remedy = "pass a smaller --max-length" if place == BUILTIN_CORPUS else error.advice
        reason = error.failures[error.index]
        raise DataError(f"{place} {reason}: {text[:80]!r}; {remedy}") from None


def embed_float64(
    texts: Sequence[str],
    embedder: Embedder,
    options: EncodeOptions | None = None,
    advance: Advance = no_progress,
) -> Float64Array:
    """Return the vector of each text, float64 [n, d]."""
    return embedder.embed(texts, options, advance).astype(np.float64)


def fit_vectors(parts: Iterable[NDArray[np.float32]], advance: Advance = no_progress) -> Statistics | None:
    """Return the statistics of precomputed embeddings, float32 [m, d] at a time; None if there are none."""
    statistics: Statistics | None = None
    start = 0
    for vectors in parts:
        window = row_keys(start, len(vectors)), vectors
        statistics = gather([window], statistics or Statistics.empty(vectors.shape[1]))
        start += len(vectors)
        advance(len(vectors))
    return statistics


def fit(moments: Moments, spec: WhiteningSpec | None, sif: bool, what: str = "sentences") -> WhiteningMap | None:
    """Return the map for a specification; None for no whitening, unless common components are removed."""
    if sif:
        return fit_sif(moments, spec)
    return fit_map(moments, spec, what=what) if spec else None
