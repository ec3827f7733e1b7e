"""Refuse a bundle whose manifest contradicts its other files."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from whiten_runtime.bundle.array_shapes import array_shapes
from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE, PROBES_FILE, WHITENING_FILE, Bundle
from whiten_runtime.bundle.consistency import (
    CLIENT_CONFIGS,
    BundleFacts,
    TokenizerFacts,
    contradictions,
    in_one_line,
    tokenizer_contradictions,
)
from whiten_runtime.bundle.graph_claims import claims_of
from whiten_runtime.bundle.graph_facts import read_facts
from whiten_runtime.bundle.manifest import MANIFEST_FILE, FileRecord
from whiten_runtime.bundle.reading import PROBES_BYTES, read_file
from whiten_runtime.errors import BundleError, IntegrityError

_LARGEST = 1 << 22
"""Bytes up to which a file for other programs is read."""


class _ProbeTexts(msgspec.Struct):
    texts: tuple[str, ...]


def check_consistency(bundle: Bundle, unfinished: bool = False) -> None:
    """Check that a manifest says what the graph, the whitening, the probes and the files for other programs say.

    Args:
        bundle: a bundle that `open_bundle` has checked.
        unfinished: whether the bundle is being made, so that nothing was proven yet.

    Raises:
        IntegrityError: they contradict each other; the message has both values.
        BundleError: a file cannot be read.
    """
    _refuse(bundle, contradictions(bundle.manifest, _facts(bundle), unfinished))


def check_tokenizer(bundle: Bundle, token_id: Callable[[str], int | None]) -> None:
    """Check that a manifest says what the tokenizer says.

    Args:
        bundle: a bundle that `open_bundle` has checked.
        token_id: function that returns the id of a token, or None if there is no such token.

    Raises:
        IntegrityError: they contradict each other; the message has both values.
    """
    told = _client(bundle.path, "tokenizer_config.json", bundle.manifest.files).get("pad_token")
    padding = token_id(told) if isinstance(told, str) else None
    _refuse(bundle, tokenizer_contradictions(bundle.manifest, TokenizerFacts(padding)))


def _refuse(bundle: Bundle, found: list[str]) -> None:
    if found:
        raise IntegrityError(
            f"{bundle.path / MANIFEST_FILE}: {in_one_line(found)}; copy the bundle again, or export the model again"
        )


def _facts(bundle: Bundle) -> BundleFacts:
    path, files = bundle.path, bundle.manifest.files
    graph = read_facts(bundle.model)
    return BundleFacts(
        graph=graph,
        claims=claims_of(graph),
        whitening=array_shapes(path / WHITENING_FILE) if WHITENING_FILE in files else {},
        probes=array_shapes(path / PROBE_VECTORS_FILE) if PROBE_VECTORS_FILE in files else {},
        texts=_count_texts(path / PROBES_FILE) if PROBES_FILE in files else None,
        clients={name: _client(path, name, files) for name in CLIENT_CONFIGS},
    )


def _count_texts(path: Path) -> int:
    try:
        return len(msgspec.json.decode(read_file(path, PROBES_BYTES), type=_ProbeTexts).texts)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{path}: its probes are damaged ({error}); copy the bundle again") from None


def _client(root: Path, name: str, files: Mapping[str, FileRecord]) -> Mapping[str, Any]:
    """Return the content of a file for other programs; empty if it is not as the manifest lists it, or no object.

    Those programs may have written it anew, and then it says nothing about the manifest.
    """
    path, record = root / name, files.get(name)
    if record is None or record.bytes > _LARGEST:
        return {}
    try:
        content = read_file(path, record.bytes)
        if hashlib.sha256(content).hexdigest() != record.sha256:
            return {}
        return msgspec.json.decode(content, type=dict[str, Any])
    except (BundleError, OSError, ValueError, msgspec.DecodeError, RecursionError):
        return {}
