"""Commands that write bundles: `whiten export`, `fit`, `merge`, `refit` and `models`."""
