"""Measure how far each kind of bundle of all-MiniLM-L6-v2 is from PyTorch, and its size."""
