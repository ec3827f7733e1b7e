"""Find the attentions of a graph, know what their masks hide, and compute long texts in blocks of queries."""
