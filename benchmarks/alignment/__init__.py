"""How well stored vectors stay usable when a whitening is fitted again, with and without alignment."""
