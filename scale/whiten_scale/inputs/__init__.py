"""Input files: which columns they have, where they can be cut, and the records of a piece."""
