"""Sources of an export: PyTorch checkpoints, ONNX encoders, word vectors."""
