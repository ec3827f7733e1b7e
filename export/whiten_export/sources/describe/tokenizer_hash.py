"""Hash what a `tokenizer.json` means, however a version of tokenizers writes it."""

import hashlib
import json
from typing import Any

from tokenizers import Tokenizer


def tokenizer_sha256(content: str) -> str:
    """Compute the SHA-256 of a `tokenizer.json` as tokenizers reads it, without truncation and padding.

    tokenizers writes what older versions wrote in its own way, such as merges as pairs. Keys are then sorted, and
    fields that are null or false left out: a version that adds a setting writes it, switched off, into every file.
    """
    meant = json.loads(Tokenizer.from_str(content).to_str()) | {"truncation": None, "padding": None}
    text = json.dumps(_without_unset(meant), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        given = {name: inner for name, inner in value.items() if inner is not None and inner is not False}
        return {name: _without_unset(inner) for name, inner in given.items()}
    return [_without_unset(inner) for inner in value] if isinstance(value, list) else value
