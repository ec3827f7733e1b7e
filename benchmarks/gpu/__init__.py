"""Compare the speed of whiten on a GPU with that of PyTorch and sentence-transformers."""
