"""Measure what bulk embedding costs beside plain `encode`, one process a core."""
