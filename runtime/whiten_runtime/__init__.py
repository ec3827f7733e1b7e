"""Compute sentence vectors from a bundle with numpy, onnxruntime and tokenizers; `whiten` has the public names."""
