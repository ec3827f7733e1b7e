"""The PyTorch or numpy reference of an export, and the parity gate that compares a bundle with it."""
