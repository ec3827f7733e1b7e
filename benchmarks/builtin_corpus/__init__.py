"""The built-in corpus: how it is made, and what a whitening that is fitted on it gives."""
