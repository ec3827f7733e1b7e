"""Measure how layers, whitening and precision change quality, by the papers' protocols."""
