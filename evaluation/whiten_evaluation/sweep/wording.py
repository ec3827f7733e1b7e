"""Name the whitenings of a sweep and what its figures show, in words and colours."""

from collections.abc import Mapping

from whiten_evaluation.drawing import BLUE, GREY, RED
from whiten_evaluation.sweep.results import Sweep, Whitened

COLOURS: Mapping[Whitened, str] = {"none": GREY, "target": RED, "corpus": BLUE}
NAMES: Mapping[Whitened, str] = {"none": "not whitened", "target": "target", "corpus": "corpus"}

SPEARMAN = "Spearman × 100"


def quality(sweep: Sweep) -> str:
    """Return the label of an axis of averages."""
    return f"{SPEARMAN}, average of {sweep.average_of}"
