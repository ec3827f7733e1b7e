"""Code vectors in a few bytes, with the moments that a bundle stores, and search among codes. numpy alone."""
