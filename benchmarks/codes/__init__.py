"""Measure what truncation, int8, binary and codes keep of similarities and of nearest neighbours."""
