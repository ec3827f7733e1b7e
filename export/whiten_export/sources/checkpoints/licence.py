"""Read which licence a model's source states. None is ever assumed."""

import re
from pathlib import Path

from whiten_models.catalogue import Entry

_SPELLING = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


_OF_THE_HUB = {
    "licenseref-gemma": "gemma",
    "licenseref-llama": "other",
    "licenseref-llama-2": "llama2",
    "pddl-1.0": "pddl",
}
"""Spellings of the hub that differ from those of SPDX, which the catalogue has, by more than their case."""


def license_of_card(path: Path) -> str | None:
    """Return the licence in the YAML of a README.md, in the hub's spelling; None without a readable one."""
    if not path.is_file():
        return None
    from huggingface_hub import metadata_load

    try:
        found = (metadata_load(path) or {}).get("license")
    except Exception:  # OSError, UnicodeError, and those of the YAML reader, which share no base class
        return None
    return _spelled(found) if isinstance(found, str) else None


def license_of_entry(entry: Entry | None) -> str | None:
    """Return the licence that the catalogue records, in the hub's spelling; None where it is not known for certain."""
    return None if entry is None else _spelled(entry.licence)


def _spelled(name: str) -> str | None:
    known = _OF_THE_HUB.get(name.lower(), name.lower())
    return known if _SPELLING.fullmatch(known) else None
