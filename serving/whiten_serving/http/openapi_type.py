"""Name the types of answers that msgspec does not describe."""

from typing import Any

AnyJson = dict[str, Any]
"""Type of bodies whose fields are not listed."""


class Text:
    """Type of answers that are text."""
