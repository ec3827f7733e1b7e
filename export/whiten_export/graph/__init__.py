"""ONNX graphs: one pass over the graph in each file."""
