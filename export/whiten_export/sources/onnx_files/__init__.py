"""Encoders that are ONNX files already."""
