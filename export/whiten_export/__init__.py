"""Export stage of whiten: a pretrained language model becomes a bundle. `import whiten_export` needs no torch."""

from whiten_export.recipe import Recipe

__all__ = ["Recipe"]
