"""Measure the memory of a process that embeds texts."""
