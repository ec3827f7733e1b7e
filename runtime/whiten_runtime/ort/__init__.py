"""onnxruntime: sessions, execution providers, and diagnosis of this machine."""
