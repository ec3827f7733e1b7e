"""Passes over ONNX graphs, one per file."""
