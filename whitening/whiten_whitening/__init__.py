"""The mathematics of whitening, with numpy alone."""
