"""Catalogue of the pretrained language models that are known by name."""
