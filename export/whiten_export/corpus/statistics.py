"""Hold the statistics of a corpus's vectors, fit them on as much of it as moves the map, and save them to a file."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.files import SentenceDigest
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import CorpusRecord, Input, Pooling, Precision, SettledRecord
from whiten_runtime.errors import DataError, NoVectorError, UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, PART, Corpus, builtin_sentences
from whiten_runtime.files.replacing import replace_file
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.engine import Advance, no_progress
from whiten_runtime.inference.options import EncodeOptions
from whiten_runtime.reporter import ProgressBar
from whiten_whitening.choosing import SETTLED, Halves, enough_to_tell, movement, vectors_needed
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map, fit_sif
from whiten_whitening.moments import Float64Array, Keys, Moments, Sample, row_keys, text_keys

FORMAT = 1


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Model that computed the vectors; statistics of different origins cannot be merged."""

    model: str
    weights_sha256: str
    tokenizer_sha256: str
    input: Input
    layers: tuple[int, ...]
    pooling: Pooling | None
    max_seq_length: int
    layer_weights: tuple[float, ...] | None = None
    include_prompt: bool = True
    modules: tuple[str, ...] = ()
    prompt: str = ""
    """Prompt that every sentence got."""
    precision: Precision
    """Precision of the graph that computed the vectors; it changes them little, and is not compared."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Origin":
        """Return the origin of the vectors before whitening that a bundle computes."""
        source = manifest.source
        return cls(
            model=source.model,
            weights_sha256=source.weights_sha256,
            tokenizer_sha256=tokenizer.sha256 if (tokenizer := manifest.files.get(TOKENIZER_FILE)) else "",
            input=manifest.input,
            layers=manifest.layers,
            pooling=manifest.pooling,
            max_seq_length=manifest.max_seq_length,
            layer_weights=manifest.layer_weights,
            include_prompt=manifest.include_prompt,
            modules=manifest.modules,
            prompt=manifest.prompts.get(manifest.default_prompt_name or "", ""),
            precision=manifest.precision,
        )

    def difference(self, other: "Origin") -> str | None:
        """Return the first field in which two origins differ, with both values, or None; names of models may differ."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and name not in ("model", "precision"):
                return f"{name} {_shown(mine)} and {_shown(theirs)}"
        return None


@dataclass(frozen=True)
class Statistics:
    """Moments and a sample of the vectors of a corpus."""

    moments: Moments  # moments of all vectors
    sample: Sample  # sample of the vectors, on which cosines can be measured before and after a map
    corpus: tuple[CorpusRecord, ...] = ()  # sources of the sentences, in order
    # why the fit stopped before the end of the corpus; None if it did not. Files do not hold it
    settled: SettledRecord | None = None

    @classmethod
    def empty(cls, width: int) -> "Statistics":
        """Return the statistics of no vectors of `width` coordinates."""
        return cls(Moments.empty(width), Sample.empty(width))

    def fitted_at(self, precision: Precision) -> "Statistics":
        """Return the same statistics of vectors that a graph of this precision computed."""
        stated = None if precision == "fp32" else precision
        return replace(self, corpus=tuple(msgspec.structs.replace(one, fitted_at=stated) for one in self.corpus))

    def merge(self, other: "Statistics") -> "Statistics":
        """Return the statistics of both corpora, this one first."""
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
    """Read statistics that `save_statistics` wrote."""
    if not path.is_file():
        raise UsageError(f"'{path}' does not exist; make it with whiten fit")
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
    return f"'{value[:12]}'" if isinstance(value, str) else str(value)


Window = tuple[Keys, NDArray[np.float32]]


def gather(windows: Iterable[Window], start: Statistics) -> Iterator[Statistics]:
    """Yield the statistics after each window of vectors, float32 [m, d], each with its sampling keys."""
    statistics = start
    for keys, vectors in windows:
        moments = statistics.moments.merge(Moments.of(vectors))
        statistics = Statistics(moments, statistics.sample.add(keys, vectors), statistics.corpus)
        yield statistics


def fit_corpus(corpus: Corpus, embedder: Embedder, advance: Advance = no_progress) -> Statistics:
    """Return the statistics of the sentences' vectors before whitening, which enter in windows of fixed size."""
    start = Statistics.empty(embedder.width)
    windows = embed_windows(corpus, embedder, advance, place_of=corpus.place_of)
    statistics = deque(chain([start], gather(windows, start)), 1).pop()
    return Statistics(statistics.moments, statistics.sample, corpus.records)


def embed_windows(
    sentences: Iterable[str],
    embedder: Embedder,
    advance: Advance,
    done: int = 0,
    digest: SentenceDigest | None = None,
    *,
    place_of: Callable[[str], str],
) -> Iterator[Window]:
    """Yield the vectors of windows of sentences, each with its sampling keys.

    `place_of` returns the file and line of a sentence, for the error of one that gets no vector.
    """
    windows = embedder.windows(sentences, replace(embedder.options, finite=True), advance, WINDOW)
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
        remedy = "pass a smaller --max-length" if place == BUILTIN_CORPUS else "leave it out"
        reason = error.failures[error.index]
        raise DataError(f"{place} {reason}: {text[:80]!r}; {remedy}, or check the model") from None


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
        (statistics,) = gather([window], statistics or Statistics.empty(vectors.shape[1]))
        start += len(vectors)
        advance(len(vectors))
    return statistics


_SENTENCES = 96
"""Number of sentences of each kind."""


def kind_moments(embedder: Embedder) -> Mapping[str, Moments]:
    """Return the moments of the vectors of sentences of each kind."""
    texts: dict[str, list[str]] = {}
    for kind, sentence in builtin_sentences():
        members = texts.setdefault(kind, [])
        if len(members) < _SENTENCES:
            members.append(sentence)
    return {kind: Moments.of(embed_float64(sentences, embedder)) for kind, sentences in texts.items()}


SpecOf = Callable[[Moments], WhiteningSpec | None]
"""Function that returns the whitening to fit on moments; None for none."""


_GROWTH = 1.25
"""Sentences over those at the last check, from which the map is checked again: a choice by pairs takes seconds."""


def fit(moments: Moments, spec: WhiteningSpec | None, sif: bool) -> WhiteningMap | None:
    """Return the map for a specification; None for no whitening, unless common components are removed."""
    if sif:
        return fit_sif(moments, spec)
    return fit_map(moments, spec) if spec else None


def fit_until_settled(
    corpus: Corpus, embedder: Embedder, spec_of: SpecOf, sif: bool, bar: ProgressBar | None = None
) -> Statistics:
    """Return the statistics of as many sentences as the map needs, in the order of `Corpus.mixed`.

    The fit stops when cosines are the same under the maps of either half of the sentences so far. A corpus that has a
    limit, or is too small to stop in, is read in order, as by `fit_corpus`.
    """
    progress = bar or ProgressBar()
    available, width = corpus.count(), embedder.width
    if corpus.limited or not enough_to_tell(available - PART, width):
        return fit_corpus(corpus, embedder, progress)
    statistics, halves, before, checked = Statistics.empty(width), Halves.empty(width), None, 0
    for part in corpus.mixed():
        n = statistics.moments.n
        for keys, vectors in embed_windows(part, embedder, progress, n, place_of=corpus.place_of):
            moments, sample = statistics.moments.merge(Moments.of(vectors)), statistics.sample.add(keys, vectors)
            statistics, halves = Statistics(moments, sample), halves.add(keys, vectors)
        n = statistics.moments.n
        if n == available or n < _GROWTH * checked or not enough_to_tell(n, width):
            continue
        checked = n
        spec = spec_of(statistics.moments)
        maps = tuple(half_map for half in halves.moments if (half_map := fit(half, spec, sif)) is not None)
        moved = movement((maps[0], maps[1]), halves.others) if maps else 0.0
        if moved <= SETTLED and spec == before:
            stop = SettledRecord(available=available, difference=round(moved, 4), bound=SETTLED)
            return Statistics(statistics.moments, statistics.sample, corpus.records, stop)
        before = spec
        progress.expect(min(available, max(n + PART, vectors_needed(n, moved))))
    deque(corpus, 0)  # a whole corpus is recorded in the order of its sources, however it was read
    return Statistics(statistics.moments, statistics.sample, corpus.records)
