"""Measure `whiten serve` beside one bulk call of `Encoder.encode` and beside FastAPI with sentence-transformers."""
