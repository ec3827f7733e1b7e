"""What differs between architectures, keyed by transformers' `model_type`. The one place for it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """Facts about an architecture that its config does not say.

    Attributes:
        positions_after_pad: position ids start at the pad id + 1, so that many positions cannot be used.
    """

    positions_after_pad: bool = False


FAMILIES = {
    "bert": Family(),
    "distilbert": Family(),
    "roberta": Family(positions_after_pad=True),
    "xlm-roberta": Family(positions_after_pad=True),
}
GENERIC = Family()


def usable_positions(config: Any) -> int | None:
    """Tokens that the position embeddings of a transformers config have room for; None if it does not say."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 1:
        return None
    if FAMILIES.get(config.model_type, GENERIC).positions_after_pad:
        positions -= (config.pad_token_id or 0) + 1
    return int(positions)
