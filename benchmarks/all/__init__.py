"""Measure the figures that the README and the guides state, and write them into these pages."""
