"""The command line of this package."""
