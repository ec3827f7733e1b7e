"""Measure the drift that texts cause which differ from those of the fit."""
