"""What an export can start from: PyTorch checkpoints, encoders that are ONNX already, word vectors."""
