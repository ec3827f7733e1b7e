"""Inference: texts to token ids, token ids to batches, batches to vectors."""
