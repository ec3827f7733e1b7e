"""Commands that write bundles: `whiten export`, `refit` and `models`."""
