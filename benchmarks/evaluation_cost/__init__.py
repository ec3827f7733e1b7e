"""Measure how much longer an evaluation takes than embedding its sentences."""
