"""Measure codes of a few bytes: what they keep of similarities and neighbours, and how fast they are searched."""
