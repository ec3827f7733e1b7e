"""Tracing takes seven of the eight seconds of a small export: the same network and layers are traced once a session."""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
from torch import nn

from whiten_export.sources.describe import families

Trace = Callable[[nn.Module, tuple[int, ...]], ir.Model]


def remembering(trace: Trace, folder: Path) -> Trace:
    """Return the same function, which keeps what it gave for equal weights, configurations and layers in a folder."""
    folder.mkdir(parents=True, exist_ok=True)

    def remembered(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        path = folder / f"{_identity(network)}-{'-'.join(map(str, layers))}"
        if not path.exists():
            content = ir.to_proto(trace(network, layers)).SerializeToString()
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(content)
            Path(file.name).replace(path)
        return ir.from_proto(onnx.ModelProto.FromString(path.read_bytes()))

    remembered.remembers = True  # type: ignore[attr-defined]
    return remembered


def _identity(network: nn.Module) -> str:
    family = families.FAMILIES.get(network.config.model_type)  # what is known of it decides what is traced
    digest = hashlib.blake2b(f"{type(network)} {network.config} {network.training} {family}".encode(), digest_size=20)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
