"""Statistics of a corpus's vectors, on which a whitening is fitted."""
