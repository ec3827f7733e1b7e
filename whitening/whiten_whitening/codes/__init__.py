"""Code vectors in a few bytes, from the moments that a bundle stores, and search among the codes, with only numpy."""
