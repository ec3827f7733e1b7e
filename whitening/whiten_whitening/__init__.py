"""Mathematics of whitening, with numpy alone."""
