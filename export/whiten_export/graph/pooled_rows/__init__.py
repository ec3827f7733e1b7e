"""Compute the last layer for the one token of each text that pooling reads."""
