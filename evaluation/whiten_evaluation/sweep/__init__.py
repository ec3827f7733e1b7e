"""Layers of a model: every one's vectors once, then all combinations of them."""
