"""Reference of an export, in PyTorch or numpy, and the parity gate that compares a bundle with it."""
