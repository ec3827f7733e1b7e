"""Compare long texts in whiten and in PyTorch: time, memory, and the distance of the vectors."""
