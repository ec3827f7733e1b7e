"""Readers of texts, pairs and vectors, and writers of vectors."""
