"""Export stage of whiten: a pretrained language model becomes a bundle. `import whiten_export` needs no torch."""

from whiten_export.estimator import Whitening
from whiten_export.recipe import Recipe
from whiten_export.whitening import WhiteningSpec

__all__ = ["Recipe", "Whitening", "WhiteningSpec"]
