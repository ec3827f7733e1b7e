"""Traces of networks, which take seven of the eight seconds of a small export: each is made once a session."""

import hashlib
import tempfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
import transformers
from torch import nn

import whiten_export
from support.once import locked

Trace = Callable[[nn.Module, tuple[int, ...]], ir.Model]


def remembering(trace: Trace, folder: Path) -> Trace:
    """Return the same function, which reads from a folder what it gave for this network, these layers and this code.

    A test that changes what is traced, but none of them, has to call the function inside: `inspect.unwrap`.
    """
    folder.mkdir(parents=True, exist_ok=True)

    @wraps(trace)
    def remembered(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        path = folder / _identity(network, layers)
        with locked(path):
            if not path.exists():
                content = ir.to_proto(trace(network, layers)).SerializeToString()
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                    file.write(content)
                Path(file.name).replace(path)
        return ir.from_proto(onnx.ModelProto.FromString(path.read_bytes()))

    return remembered


@cache
def _code() -> str:
    """Return the hash of the code that traces, and of the versions of the packages that it calls."""
    digest = hashlib.blake2b(f"{torch.__version__} {transformers.__version__} {onnx.__version__}".encode())
    for path in sorted(Path(whiten_export.__path__[0]).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_OTHER_SETTINGS = ("_name_or_path", "architectures", "transformers_version", "use_cache")
"""Settings that decide nothing: networks that sentence-transformers saves have others of them."""


def _identity(network: nn.Module, layers: tuple[int, ...]) -> str:
    settings = {name: value for name, value in network.config.to_dict().items() if name not in _OTHER_SETTINGS}
    made_of = f"{_code()} {type(network)} {settings} {network.training} {layers}"
    digest = hashlib.blake2b(made_of.encode(), digest_size=20)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
