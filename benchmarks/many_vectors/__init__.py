"""Measure time and memory of fitting a whitening on ten million vectors."""
