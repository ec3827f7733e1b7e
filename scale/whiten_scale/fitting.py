"""Fit statistics of ranges of shards, and merge them in the order of the plan."""

from collections.abc import Iterator
from pathlib import Path

from threadpoolctl import threadpool_limits

from whiten_runtime.bundle.files import SentenceDigest
from whiten_runtime.bundle.manifest import CorpusRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.inference.loading import load_unwhitened
from whiten_runtime.ort.session import SessionOptions, providers_for
from whiten_scale.plan import Job
from whiten_scale.readers import read_pieces
from whiten_whitening.statistics import Origin, Statistics, embed_windows, gather, load_statistics, save_statistics

MOST_RANGES = 256
"""Ranges of a job, at most: each has a file, of 7.5 MB with 384 dimensions, and a line in the manifest of a bundle that
is fitted on them. They depend only on the plan."""


def ranges_of(job: Job) -> list[range]:
    """Return the shards of each range."""
    count = len(job.shards)
    ranges = min(count, MOST_RANGES)
    return [range(count * place // ranges, count * (place + 1) // ranges) for place in range(ranges)]


def range_name(number: int) -> str:
    """Return the name of the file of a range."""
    return f"range-{number:04d}.safetensors"


class RangeFitter:
    """Fits statistics with one thread."""

    def __init__(self, bundle: Path) -> None:
        opened, self._embedder = load_unwhitened(bundle, SessionOptions(providers_for(), threads=1))
        self._origin = Origin.of(opened.manifest)

    def fit(self, job: Job, number: int, folder: Path) -> None:
        """Fit the statistics of a range, and write them, unless they are there."""
        path, shards = folder / range_name(number), ranges_of(job)[number]
        if path.is_file():
            load_range(job, number, folder)
            return
        done = job.starts[shards.start]
        sentences, digest = (text for text, _ in _sentences(job, shards)), SentenceDigest()

        def place_of(sentence: str) -> str:
            return next((place for text, place in _sentences(job, shards) if text == sentence), "the input")

        with threadpool_limits(1, "blas"):
            vectors = embed_windows(sentences, self._embedder, lambda count: None, done, digest, place_of=place_of)
            statistics = gather(vectors, Statistics.empty(self._embedder.width))
        name, count = _name(job, number), statistics.moments.n
        corpus = (CorpusRecord(name=name, sha256=digest.hexdigest(), sentences=count),)
        result = Statistics(statistics.moments, statistics.sample, corpus).fitted_at(self._origin.precision)
        save_statistics(path, result, self._origin)


def load_range(job: Job, number: int, folder: Path) -> tuple[Statistics, Origin]:
    """Read the statistics of a range."""
    path = folder / range_name(number)
    statistics, origin = load_statistics(path)
    if [record.name for record in statistics.corpus] != [_name(job, number)]:
        raise UsageError(f"{path}: is of another job; move it away, or name another --out")
    return statistics, origin


def merge_ranges(job: Job, folder: Path) -> tuple[Statistics, Origin]:
    """Return the statistics of all ranges, merged in order."""
    merged, origin = load_range(job, 0, folder)
    with threadpool_limits(1, "blas"):
        for number in range(1, len(ranges_of(job))):
            merged = merged.merge(load_range(job, number, folder)[0])
    if not merged.moments.n:
        raise DataError("the input holds no sentence; give files with text in them")
    return merged, origin


def _name(job: Job, number: int) -> str:
    """Return the name of a range as a corpus: its first file, and which range it is."""
    first = job.shards[ranges_of(job)[number].start][0]
    return f"{job.files[first.file].name} ({job.key[:8]}, range {number + 1} of {len(ranges_of(job))})"


def _sentences(job: Job, shards: range) -> Iterator[tuple[str, str]]:
    """Yield the sentences of shards, each with its file and row."""
    for number in shards:
        for chunk in read_pieces(job.files, job.shards[number], job.carried):
            if chunk.wrong:
                raise chunk.wrong[0].error()
            columns = (chunk.table.column(index).to_pylist() for index in range(3))
            yield from ((text, f"{file}: row {row}") for text, file, row in zip(*columns, strict=True) if text.strip())
