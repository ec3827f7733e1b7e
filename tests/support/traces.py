"""Tracing takes seven of the eight seconds of a small export: all layers of a network are traced once a session.

Those of small networks are kept for later sessions, too, as long as what traced them is the same.
"""

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

import whiten_export
from support.once import CACHE
from whiten_export.sources.describe import families

Trace = Callable[[nn.Module, tuple[int, ...]], ir.Model]

SMALL = 2**24
"""Bytes of the weights of a network whose trace is kept for later sessions."""

OLD = 2 * 24 * 3600.0
"""Seconds after which traces of other packages and sources are removed."""

PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxscript", "torch", "transformers")
"""What decides what is traced, besides the project's sources."""


def remembering(trace: Trace, folder: Path, kept: Path | None = None) -> Trace:
    """Return the same function, which keeps what it gave for equal weights and configurations in a folder, or in
    `kept` if they are of a small network of transformers.

    It keeps the graph of all layers, and returns the part of it that the chosen ones need. A test that changes what is
    traced, but neither weights nor configuration, has to call the function inside: `inspect.unwrap`.
    """
    ONNXRegistry.from_torchlib = staticmethod(_registry)  # PyTorch makes it at each export

    @wraps(trace)
    def remembered(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        home = folder if kept is None or not _is_small_and_public(network) else kept
        path = home / _identity(network)
        if not path.exists():
            every = tuple(range(network.config.num_hidden_layers + 1))
            content = ir.to_proto(trace(network, every)).SerializeToString()
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=home, delete=False) as file:
                file.write(content)
            Path(file.name).replace(path)
        model = ir.from_proto(onnx.ModelProto.FromString(path.read_bytes()))
        model.graph.outputs[:] = [model.graph.outputs[layer] for layer in layers]
        RemoveUnusedNodesPass()(model)
        return model

    return remembered


@cache
def kept_traces() -> Path:
    """Return the folder that is kept for these versions of packages and sources; remove old ones of others."""
    home = CACHE / "traces"
    digest = hashlib.sha256(repr((sys.version, [version(name) for name in PACKAGES])).encode())
    for path in _sources():
        digest.update(path.read_bytes())
    folder = home / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for other in home.iterdir():
        if other != folder and other.stat().st_mtime < time.time() - OLD:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _sources() -> Iterator[Path]:
    """Yield the files that decide what is traced: what loads and describes networks, and what makes graphs of them."""
    root = Path(whiten_export.__path__[0])
    yield from sorted((root / "sources").rglob("*.py"))
    yield from (root / "graph" / name for name in ("builder.py", "head.py"))


def _is_small_and_public(network: nn.Module) -> bool:
    """Return whether it is small, and its code is that of transformers."""
    public = type(network).__module__.startswith("transformers.models.")
    return public and sum(tensor.nbytes for tensor in network.state_dict().values()) <= SMALL


_registry = cache(ONNXRegistry.from_torchlib)


def _identity(network: nn.Module) -> str:
    family = families.FAMILIES.get(network.config.model_type)  # what is known of it decides what is traced
    digest = hashlib.blake2b(f"{type(network)} {network.config} {network.training} {family}".encode(), digest_size=20)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
