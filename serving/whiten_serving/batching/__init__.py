"""Requests wait in a queue; lanes take batches of texts of like length from it."""
