"""Measure how much two bundles in one process slow each other down."""
