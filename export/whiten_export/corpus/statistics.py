"""Hold the statistics of a corpus's vectors, on which a whitening is fitted, and save them to a file."""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import CorpusRecord, Input, Pooling, Precision, SettledRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.replacing import replace_file
from whiten_whitening.moments import Moments, Sample

FORMAT = 1


_COMPARED = (
    *("weights_sha256", "input", "layers", "layer_weights", "pooling", "include_prompt"),
    *("modules", "prompt", "max_seq_length", "tokenizer_sha256"),
)
"""Fields in which two origins must be equal for their statistics to be merged."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the model that computed the vectors; statistics of different origins cannot be merged."""

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
        """Return the first field in which two origins differ, with both values, or None."""
        for name in _COMPARED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {_shown(mine)} and {_shown(theirs)}"
        return None


@dataclass(frozen=True)
class Statistics:
    """Holds the moments and a sample of the vectors of a corpus."""

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
        if sample.vectors.shape != (len(sample.keys), len(moments.mean)) or not np.isfinite(sample.vectors).all():
            raise ValueError("its sample does not fit its moments")
    except (OSError, SafetensorError, msgspec.DecodeError, KeyError, ValueError) as error:
        raise DataError(f"{path}: not a file of whiten fit ({error}); make it again") from None
    if header.format != FORMAT:
        raise DataError(f"{path}: statistics of format {header.format}; this version of whiten reads {FORMAT}")
    statistics, precision = Statistics(moments, sample, header.corpus), header.origin.precision
    if all(one.fitted_at is None for one in header.corpus):  # also in files that were written before it was stated
        statistics = statistics.fitted_at(precision)
    return statistics, header.origin


def _shown(value: object) -> str:
    return f"'{value[:12]}'" if isinstance(value, str) else str(value)
