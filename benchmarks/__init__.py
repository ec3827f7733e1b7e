"""Benchmarks: one folder for each question, run as `python -m benchmarks.FOLDER`; README.md lists them."""
