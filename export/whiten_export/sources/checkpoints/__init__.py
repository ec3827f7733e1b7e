"""Find the files of a model: on disk, in an installed package, or on the hub."""
