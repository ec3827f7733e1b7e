"""The options of `whiten serve`: one table for the command line, the environment, files of TOML, docs and /info."""
