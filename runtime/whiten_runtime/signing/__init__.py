"""Signatures of bundles, by OpenSSF model-signing. That package and cryptography are imported in functions only."""
