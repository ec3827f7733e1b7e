"""Commands of bulk work."""
