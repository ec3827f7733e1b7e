"""Sizes of the small checkpoints, and so of the golden bundle that was made of one."""

LAYERS, WIDTH, MAX_LENGTH = 4, 32, 48
