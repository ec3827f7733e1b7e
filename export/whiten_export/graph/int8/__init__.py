"""Turn a graph into int8: which values, with which scales, and the rewriting itself."""
