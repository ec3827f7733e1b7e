"""The catalogue of pretrained language models that are known by name."""
