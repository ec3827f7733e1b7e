"""Prepare a network for each engine, and load the engine: a function from a text to the mean of its last states."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[str], NDArray[np.float32]]
OPENVINO_GRAPH = "openvino.xml"
ONNX_BACKEND = "sentence-transformers-ONNX"
ON_CPU = {"provider": "CPUExecutionProvider"}


@dataclass(frozen=True)
class Job:
    """Names an engine with its precision, a checkpoint, a device, and the maximum number of tokens."""

    engine: str
    folder: Path
    device: str
    longest: int

    @property
    def name(self) -> str:
        """Return the engine without target and precision."""
        return self.engine.split()[0].partition(":")[0]

    @property
    def target(self) -> str:
        """Return the target of whiten's bundle."""
        return self.engine.split()[0].partition(":")[2] or "cpu"

    @property
    def precision(self) -> str:
        """Return fp32, fp16, bf16 or int8."""
        return self.engine.split()[1]

    @property
    def bundle(self) -> Path:
        """Return the folder of whiten's bundle."""
        return self.folder / f"bundle-{self.engine}".replace(" ", "-").replace(":", "-")


def export_whiten(job: Job) -> None:
    """Write a bundle of the last layer, not whitened."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    choices: dict[str, Any] = {"precision": job.precision, "target": job.target}
    recipe = Recipe(str(job.folder), layers=(-1,), whitening=None, max_length=job.longest, **choices)
    export_bundle(recipe, job.bundle, replace=True)


def load_whiten(job: Job) -> Encode:
    """Load a bundle."""
    from whiten import Encoder

    encode: Encode = Encoder(job.bundle, device=job.device).encode
    return encode


def load_pytorch(job: Job) -> Encode:
    """Load PyTorch with its scaled-dot-product attention."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.folder, model_max_length=job.longest)
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[job.precision]
    network: Any = AutoModel.from_pretrained(job.folder, dtype=dtype, attn_implementation="sdpa").to(job.device).eval()

    @torch.inference_mode()
    def encode(text: str) -> NDArray[np.float32]:
        tokens = tokenizer([text], return_tensors="pt", truncation=True, max_length=job.longest).to(job.device)
        states = network(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
        vector: NDArray[np.float32] = states.float().mean(1)[0].cpu().numpy()
        return vector

    return encode


def export_openvino(job: Job) -> None:
    """Convert a network of PyTorch, with its scaled-dot-product attention, to OpenVINO."""
    import openvino
    import torch
    from transformers import AutoModel

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network: Any = AutoModel.from_pretrained(job.folder, attn_implementation="sdpa").eval()
            self.network.config.use_cache = False  # OpenVINO cannot convert the cache of a decoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return self.network(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    example = (torch.full((2, 300), 5), torch.ones(2, 300, dtype=torch.int64))  # longer than the windows
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    program = torch.export.export(States(), example, dynamic_shapes=(axes, axes), strict=False)
    model = openvino.convert_model(program)
    openvino.save_model(model, str(job.folder / OPENVINO_GRAPH), compress_to_fp16=False)


def load_openvino(job: Job) -> Encode:
    """Load OpenVINO in float32."""
    import openvino
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.folder, model_max_length=job.longest)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1}
    network = openvino.Core().compile_model(str(job.folder / OPENVINO_GRAPH), "CPU", config)

    def encode(text: str) -> NDArray[np.float32]:
        tokens = tokenizer([text], return_tensors="np", truncation=True, max_length=job.longest)
        states = network({name: tokens[name] for name in ("input_ids", "attention_mask")})[0]
        vector: NDArray[np.float32] = states.mean(1)[0]
        return vector

    return encode


def export_onnx_backend(job: Job) -> None:
    """Write the folder of sentence-transformers whose graph its ONNX backend opens."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(job.folder), backend="onnx", model_kwargs=ON_CPU)
    model.save_pretrained(str(job.folder / ONNX_BACKEND))


def load_onnx_backend(job: Job) -> Encode:
    """Load the ONNX backend of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(job.folder / ONNX_BACKEND), backend="onnx", model_kwargs=ON_CPU)
    model.max_seq_length = job.longest
    encode: Encode = model.encode
    return encode


@dataclass(frozen=True)
class Engine:
    """Holds what an engine needs to be installed, how it loads a checkpoint, and what it writes before."""

    packages: tuple[str, ...]
    load: Callable[[Job], Encode]
    export: Callable[[Job], None] | None = None

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for package in self.packages if find_spec(package) is None]


ENGINES = {
    "whiten": Engine((), load_whiten, export_whiten),
    "PyTorch": Engine((), load_pytorch),
    "OpenVINO": Engine(("openvino",), load_openvino, export_openvino),
    ONNX_BACKEND: Engine(("sentence_transformers", "optimum", "onnxruntime"), load_onnx_backend, export_onnx_backend),
}
"""Engines by the first word of their row."""
