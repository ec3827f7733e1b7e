"""Describe a model before it runs: its files, on disk or on the hub, and what they say."""
