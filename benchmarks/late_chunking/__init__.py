"""Compare passages that are embedded in one pass over a long text with passages that are embedded alone."""
