"""Measure time and memory of the export of full-size networks."""
