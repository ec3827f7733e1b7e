"""Measure the accuracy that layer normalisation loses with statistics in float16."""
