"""Read and write probes: texts and the reference's vectors for them, stored in the bundle to verify it later."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE, PROBES_FILE, Bundle
from whiten_runtime.errors import BundleError


@dataclass(frozen=True)
class Probes:
    """Holds texts with the reference's vectors."""

    texts: tuple[str, ...]  # n texts; empty in a bundle that whitens vectors
    embeddings: NDArray[np.float64]  # finished vectors before rounding to int8, if there is one, float64 [n, k]
    unwhitened: NDArray[np.float64]  # vectors before whitening and normalisation, float64 [n, d]


class _ProbesFile(msgspec.Struct):
    texts: tuple[str, ...]


def write_probes(root: Path, probes: Probes) -> None:
    """Write `probes.json` and `probes.safetensors` into a bundle directory."""
    if probes.texts:
        content = msgspec.json.format(msgspec.json.encode(_ProbesFile(probes.texts)), indent=2)
        (root / PROBES_FILE).write_bytes(content + b"\n")
    vectors = {"embeddings": probes.embeddings, "unwhitened": probes.unwhitened}
    arrays = save({name: np.ascontiguousarray(array) for name, array in vectors.items()})
    (root / PROBE_VECTORS_FILE).write_bytes(arrays)


def read_probes(bundle: Bundle) -> Probes:
    """Read the probes of a bundle."""
    of_texts = bundle.manifest.input == "text"
    for name in (PROBE_VECTORS_FILE, *([PROBES_FILE] if of_texts else [])):
        if name not in bundle.manifest.files:
            raise BundleError(f"{bundle.path}: has no {name}, so nothing can be proven; export the model again")
    try:
        texts: tuple[str, ...] = ()
        if of_texts:
            texts = msgspec.json.decode(_content(bundle, PROBES_FILE), type=_ProbesFile).texts
        vectors = load(_content(bundle, PROBE_VECTORS_FILE))
        probes = Probes(texts, vectors["embeddings"], vectors["unwhitened"])
    except BundleError:
        raise
    except (OSError, ValueError, RecursionError, SafetensorError, LookupError, TypeError) as error:
        raise BundleError(f"{bundle.path}: its probes are damaged ({error}); copy the bundle again") from None
    for name, rows in (("embeddings", probes.embeddings), ("unwhitened", probes.unwhitened)):
        if rows.dtype != np.float64 or not np.isfinite(rows).all():
            what = f"{rows.dtype}" if rows.dtype != np.float64 else "not finite"
            raise BundleError(f"{bundle.path}: {name} of its probes are {what}; wanted finite float64: export it again")
    count = len(texts) if of_texts else len(probes.unwhitened)
    if not count:
        raise BundleError(f"{bundle.path}: has no probes, so nothing can be proven; export the model again")
    wanted = {"embeddings": bundle.manifest.dimension, "unwhitened": bundle.manifest.unwhitened_width}
    for name, rows in (("embeddings", probes.embeddings), ("unwhitened", probes.unwhitened)):
        if rows.shape != (count, wanted[name]):
            raise BundleError(
                f"{bundle.path}: {name} of its probes are of shape {rows.shape}, not {(count, wanted[name])}; "
                "copy the bundle again"
            )
    return probes


def _content(bundle: Bundle, name: str) -> bytes:
    with bundle.opened(name) as file:
        return file.read()
