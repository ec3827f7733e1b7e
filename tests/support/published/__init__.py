"""Small random folders, laid out as the repositories of published embedding models are.

`PUBLISHED` has a row for each model, `SPECIAL` one for each thing that is rare. A folder has the config class, the kind
of tokenizer and the modules of the model; `SentenceTransformer(folder).encode` works unless its row says otherwise.
"""

from collections.abc import Mapping
from pathlib import Path

from support.published.folders import Published, save
from support.published.rows import ROWS
from support.published.special import RARE

__all__ = ["PUBLISHED", "SPECIAL", "Published", "save_published"]

PUBLISHED: Mapping[str, Published] = {row.name: row for row in ROWS}
SPECIAL: Mapping[str, Published] = {row.name: row for row in RARE}


def save_published(name: str, directory: Path) -> Path:
    """Write the folder of a row of `PUBLISHED` or `SPECIAL`, and return the directory.

    Args:
        name: of the row.
        directory: where to; it is made if it is missing.
    """
    return save(PUBLISHED.get(name) or SPECIAL[name], directory)
