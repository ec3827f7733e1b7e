"""Read which Python code comes with a checkpoint: the `auto_map` of its settings, which may name other repositories."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whiten_export.sources.describe.settings import read_settings

_TOKENIZER = "AutoTokenizer"
_NETWORK = ("AutoConfig", "AutoModel")

_OTHER = "--"
"""Separator between the id of a repository and the name of a class that lies there."""


def network_code(directory: Path) -> dict[str, str]:
    """Return the files of a folder's own config and network, such as "own.py" and "ORG/NAME--own.py", by class."""
    return dict(_codes(directory / "config.json", _NETWORK))


def tokenizer_code(directory: Path) -> dict[str, str]:
    """Return the file of a folder's own tokenizer, by "AutoTokenizer"."""
    return dict(_codes(directory / "tokenizer_config.json", (_TOKENIZER,)))


def split_repository(file: str) -> tuple[str | None, str]:
    """Return the repository in which a file of code lies, None for the checkpoint's own folder, and the file's name."""
    repository, _, name = file.rpartition(_OTHER)
    return repository or None, name


def _codes(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the names for which a file's `auto_map` has code, and the file of it."""
    mapped = read_settings(path).get("auto_map") if path.is_file() else None
    if isinstance(mapped, list):  # of a tokenizer, in older files
        mapped = {_TOKENIZER: mapped}
    for name, place in mapped.items() if isinstance(mapped, dict) else ():
        if name in names and (reference := _reference(place)) is not None:
            yield name, f"{reference.rpartition('.')[0]}.py"


def _reference(place: Any) -> str | None:
    """Return a class such as "modeling.Model"; that of a fast tokenizer goes before a slow one's, which comes first."""
    places = place if isinstance(place, list) else [place]
    return next((one for one in reversed(places) if isinstance(one, str) and "." in one), None)
