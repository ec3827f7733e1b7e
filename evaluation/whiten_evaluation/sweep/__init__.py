"""Compute the vectors of every layer of a model once, then score all combinations of layers."""
