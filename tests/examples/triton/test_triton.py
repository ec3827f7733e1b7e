"""Triton's configuration names the inputs and outputs that a bundle's graph has, with their types and sizes.

Triton itself is not installed: its own description of the file parses it. That a server starts with it was not tried.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from support.once import installed_packages
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE, MODEL_FILE

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[3] / "examples" / "triton" / "config.pbtxt"
TYPES = {"TYPE_INT64": onnx.TensorProto.INT64, "TYPE_FP32": onnx.TensorProto.FLOAT}

PARSE = """
import sys
sys.path.insert(0, sys.argv[2])  # the package itself imports what only its client needs
from google.protobuf import json_format, text_format
from model_config_pb2 import ModelConfig
config = text_format.Parse(open(sys.argv[1]).read(), ModelConfig())
print(json_format.MessageToJson(config, preserving_proto_field_name=True))
"""


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """The configuration as Triton's client understands it; unknown fields are errors."""
    requirements = Path(__file__).with_name("requirements.txt")
    packages = installed_packages("triton-example", requirements, "--no-deps")
    command = [sys.executable, "-c", PARSE, str(CONFIG), str(packages / "tritonclient" / "grpc")]
    environment = os.environ | {"PYTHONPATH": str(packages)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def described(values: Any) -> dict[str, tuple[int, list[int]]]:
    """Return type and size of each input or output of a graph, without the batch; -1 for any size."""
    found = {}
    for value in values:
        tensor = value.type.tensor_type
        sizes = [one.dim_value if one.HasField("dim_value") else -1 for one in tensor.shape.dim]
        assert sizes[0] == -1
        found[value.name] = (tensor.elem_type, sizes[1:])
    return found


def test_inputs_and_outputs_are_those_of_the_graph(config: dict[str, Any], minilm_bundle: Path) -> None:
    graph = onnx.load(minilm_bundle / MODEL_FILE, load_external_data=False).graph
    told = {
        kind: {one["name"]: (TYPES[one["data_type"]], list(map(int, one["dims"]))) for one in config[kind]}
        for kind in ("input", "output")
    }
    assert told["input"] == described(graph.input)
    assert told["output"].items() <= described(graph.output).items()
    assert list(told["output"]) == ["sentence_embedding"]
    assert config["max_batch_size"] > 0
    assert config["backend"] == "onnxruntime"


def test_the_two_files_are_named(config: dict[str, Any]) -> None:
    first = CONFIG.read_text("utf-8").splitlines()[0]
    for name in (
        f"{config['name']}/config.pbtxt",
        *(f"1/{Path(file).name}" for file in (MODEL_FILE, EXTERNAL_DATA_FILE)),
    ):
        assert name in first
