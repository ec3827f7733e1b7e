"""Exports from end to end: what was asked for, what is planned, and the steps that write a bundle."""
