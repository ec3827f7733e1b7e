"""Open bundles: `Encoder`, `VectorWhitener`, what both share, and the choice of `whiten tune` for one."""
