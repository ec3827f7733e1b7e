"""Measure how many tokens one run of the graph should have, and whether several processes help."""
