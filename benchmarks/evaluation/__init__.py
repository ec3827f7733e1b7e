"""Show how whitening changes the scores of similarity and classification tasks."""
