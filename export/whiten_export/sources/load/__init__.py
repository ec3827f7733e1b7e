"""Models of each kind, with the packages that run them."""
