"""Export small networks: one to be verified, used and refitted, and three for texts of 3,000 tokens."""

from pathlib import Path

from support.checkpoints import save_checkpoint, save_long_checkpoint
from whiten import Recipe, export_bundle

POSITIONS, LONGEST = 8192, 3200
FAMILIES = ("bert", "modernbert", "qwen3")
"""A network in which every token sees all, one with windows, and a causal one with grouped heads."""
PRECISIONS = ("fp32", "int8")

LONG = tuple(f"{family}-{precision}" for family in FAMILIES for precision in PRECISIONS)
"""Names of the bundles for long texts."""


def export_fresh(folder: Path) -> Path:
    """Export a whitened BERT, as the golden ones are, with today's graph."""
    checkpoint = save_checkpoint("bert", folder / "checkpoints" / "fresh")
    recipe = Recipe(str(checkpoint), layers=(1, -1), whitening="pca", max_sentences=400)
    export_bundle(recipe, folder / "fresh", replace=True)
    return folder / "fresh"


def export_long(folder: Path) -> None:
    """Export the bundles `LONG` of two layers and 8,192 positions; 3,200 are proven, as 8,192 take a minute."""
    for family in FAMILIES:
        path = folder / "checkpoints" / family
        checkpoint = save_long_checkpoint(family, path, POSITIONS, num_hidden_layers=2)
        for precision in PRECISIONS:
            recipe = Recipe(str(checkpoint), layers=(-1,), whitening=None, max_length=LONGEST, precision=precision)
            export_bundle(recipe, folder / f"{family}-{precision}", replace=True)
