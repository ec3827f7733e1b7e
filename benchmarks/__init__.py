"""Measure whiten, in one folder for each question: `python -m benchmarks.FOLDER`; README.md lists them."""
