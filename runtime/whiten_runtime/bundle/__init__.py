"""Files of a bundle: manifest, graph, probes and parity."""
