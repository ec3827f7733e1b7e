"""Bundles on the model hub: finding, downloading and uploading them. huggingface_hub is imported in functions only."""
