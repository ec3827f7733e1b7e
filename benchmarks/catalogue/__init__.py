"""Measure how far the bundle of every catalogue entry is from PyTorch or sentence-transformers."""
