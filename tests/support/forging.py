"""Forging a bundle as an attacker would: other vectors, and all that `whiten verify` compares made to agree."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file, save

from support.bundles import rewrite_file
from whiten import Encoder


def forge(bundle: Path) -> None:
    """Reverse the rows of a bundle's word embeddings, compute its probes anew, and write their hashes."""
    model = onnx.load(bundle / "onnx/model.onnx")
    table = max((one for one in model.graph.initializer if len(one.dims) == 2), key=lambda one: one.dims[0])
    rows = numpy_helper.to_array(table)
    table.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(rows[::-1]), table.name))
    rewrite_file(bundle, "onnx/model.onnx", model.SerializeToString())
    probes = load_file(bundle / "probes.safetensors")
    with Encoder(bundle, threads=1) as encoder:
        from whiten_runtime.bundle.probes import read_probes

        texts = read_probes(encoder._bundle).texts
        vectors = encoder.encode(list(texts), prompt="")
    assert np.abs(vectors - probes["embeddings"]).max() > 0.1, "the vectors are others"
    probes["embeddings"] = vectors.astype(np.float64)
    rewrite_file(bundle, "probes.safetensors", save(probes))
