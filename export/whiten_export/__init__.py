"""Export of whiten: turn a pretrained language model into a bundle. `import whiten_export` needs no torch."""

from whiten_export.pipeline.recipe import Recipe
from whiten_whitening.estimator import Whitening
from whiten_whitening.maps import WhiteningSpec

__all__ = ["Recipe", "Whitening", "WhiteningSpec"]
