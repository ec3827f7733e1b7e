"""Mathematics of whitening, with only numpy."""
