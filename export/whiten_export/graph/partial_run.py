"""Compute a value of a graph by running the part of the graph that it depends on."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_runtime.ort.session import SessionOptions, create_session


class PartialRun:
    """Computes one value of a model alone."""

    def __init__(self, model: ir.Model, value: ir.Value, most: int) -> None:
        part = ir.convenience.extract(model.graph, list(model.graph.inputs), [value])
        weights = [weight.const_value for weight in part.initializers.values()]
        self.allowed = sum(weight.size for weight in weights if weight is not None) <= most
        self._session: Any = None
        if self.allowed:
            small = ir.Model(part, ir_version=model.ir_version)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "part.onnx"
                ir.external_data.load_to_model(small)
                ir.save(small, path)
                self._session = create_session(path, SessionOptions(threads=1))

    def __call__(self, feed: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the value for token ids and a mask, int64 [batch_size, sequence_length]."""
        found: NDArray[np.float32]
        (found,) = self._session.run(None, {value.name: feed[value.name] for value in self._session.get_inputs()})
        return found
