"""Open bundles: `Encoder`, `VectorWhitener`, and what both share."""
