"""Read the JSON files of a checkpoint."""

import json
from pathlib import Path
from typing import Any

from whiten_runtime.errors import WhitenError


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WhitenError(f"{path}: cannot be read ({error}); copy the model again") from None


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings by name."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise WhitenError(f"{path}: holds a {type(content).__name__}; wanted settings by name")
    return content
