"""Tracing takes seven of the eight seconds of a small export: all layers of a network are traced once a session."""

import gc
import hashlib
import tempfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

from support.once import locked
from whiten_export.sources import families

Trace = Callable[[nn.Module, tuple[int, ...]], ir.Model]


def remembering(trace: Trace, folder: Path) -> Trace:
    """Return the same function, which keeps what it gave for equal weights and configurations in a folder.

    It keeps the graph of all layers, and returns the part of it that the chosen ones need. A test that changes what is
    traced, but neither weights nor configuration, has to call the function inside: `inspect.unwrap`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ONNXRegistry.from_torchlib = staticmethod(_registry)  # PyTorch makes it at each export

    @wraps(trace)
    def remembered(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        path = folder / _identity(network)
        with locked(path):
            if not path.exists():
                every = tuple(range(network.config.num_hidden_layers + 1))
                content = ir.to_proto(trace(network, every)).SerializeToString()
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                    file.write(content)
                Path(file.name).replace(path)
                gc.collect()
                gc.freeze()  # collections of each export would go through what PyTorch's exporter leaves
        model = ir.from_proto(onnx.ModelProto.FromString(path.read_bytes()))
        model.graph.outputs[:] = [model.graph.outputs[layer] for layer in layers]
        RemoveUnusedNodesPass()(model)
        return model

    return remembered


_registry = cache(ONNXRegistry.from_torchlib)


_OTHER_SETTINGS = ("_name_or_path", "architectures", "transformers_version", "use_cache")
"""Settings that decide nothing: networks that sentence-transformers saves have others of them."""


def _identity(network: nn.Module) -> str:
    family = families.FAMILIES.get(network.config.model_type)  # what is known of it decides what is traced
    settings = {name: value for name, value in network.config.to_dict().items() if name not in _OTHER_SETTINGS}
    digest = hashlib.blake2b(f"{type(network)} {settings} {network.training} {family}".encode(), digest_size=20)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
