"""Networks of PyTorch, loaded by transformers."""
