"""Show how vectors are stored and searched in other programs."""
