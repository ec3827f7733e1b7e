"""Vectors of a corpus reduced to the statistics that a whitening is fitted on."""
