"""onnxruntime: sessions, execution providers, and what this machine can run."""
