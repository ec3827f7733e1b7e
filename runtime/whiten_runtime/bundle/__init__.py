"""A bundle on disk: manifest, graph, probes and parity."""
