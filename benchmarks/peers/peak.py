"""Measure the processor's peak: matrix products of onnxruntime alone, in the shapes of BERT-base.

`python -m benchmarks.peers.peak THREADS` prints one JSON line: billions of operations per second in float32 and in
uint8 times int8, the best of several runs, with as many sessions of one thread side by side as there are threads.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.timing import seconds

ROWS, INNER, COLUMNS, RUNS = 512, 768, 3072, 12


def session(operator: str, left: int, weights: np.ndarray, result: int) -> onnxruntime.InferenceSession:
    """Return a session of one thread whose graph is one product."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "peak",
        [helper.make_tensor_value_info("x", left, [None, INNER])],
        [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def rate(product: onnxruntime.InferenceSession, rows: np.ndarray, threads: int) -> float:
    """Return billions of operations per second, the best of five runs."""

    def run(_: int) -> None:
        for _ in range(RUNS):
            product.run(None, {"x": rows})

    best = float("inf")
    with ThreadPoolExecutor(threads) as executor:
        for _ in range(5):
            best = min(best, seconds(lambda: list(executor.map(run, range(threads)))))
    return 2 * ROWS * INNER * COLUMNS * RUNS * threads / best / 1e9


def main() -> None:
    """Print the figures."""
    threads = int(sys.argv[1])
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(INNER, COLUMNS)).astype(np.float32)
    floats = session("MatMul", TensorProto.FLOAT, weights, TensorProto.FLOAT)
    integers = session(
        "MatMulInteger", TensorProto.UINT8, (weights * 30).clip(-127, 127).astype(np.int8), TensorProto.INT32
    )
    rows = generator.normal(size=(ROWS, INNER)).astype(np.float32)
    figures = {
        "fp32": rate(floats, rows, threads),
        "int8": rate(integers, (rows * 40 + 128).clip(0, 255).astype(np.uint8), threads),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
