"""Guard against slower embedding: compare with the last record of this kind of processor."""
