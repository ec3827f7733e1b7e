"""Time one text of up to 8,192 tokens, and the memory of it: `python -m benchmarks.long_texts --texts FILE`.

Compares whiten with PyTorch's scaled-dot-product attention, and with OpenVINO if it is installed and named, on networks
of random weights. Each figure is from a process of its own. Writes table.md, or table-cuda.md with `--device cuda`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import made_by
from benchmarks.workloads import minilm, passages, plain_tokenizer
from whiten_runtime.errors import WhitenError
from whiten_runtime.files.texts import read_texts

HERE = Path(__file__).parent
OPENVINO_GRAPH = "openvino.xml"
REFERENCE = "PyTorch fp32"
POSITIONS = 8192
LONG = 4096
"""Number of tokens above which a text is timed once."""


@dataclass(frozen=True)
class Network:
    """Describes a network of random weights, of base size where it does not say otherwise."""

    kind: str  # type in transformers
    layers: int  # number of layers of the published model
    settings: dict[str, Any]
    tokens: int = POSITIONS  # maximum number of tokens


NETWORKS = {
    network.kind: network
    for network in (
        Network("modernbert", 22, {"reference_compile": False}),
        Network("bert", 12, {}),
        # bge-m3's positions
        Network("xlm-roberta", 12, {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}),
        # EmbeddingGemma's layers
        Network(
            "gemma3_text",
            24,
            {
                "hidden_size": 768,
                "intermediate_size": 1152,
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "head_dim": 256,
                "sliding_window": 512,
                "use_bidirectional_attention": True,
            },
            tokens=2048,
        ),
        # layers of Qwen3-Embedding-0.6B
        Network(
            "qwen3",
            28,
            {
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "use_sliding_window": False,
            },
        ),
    )
}
"""Networks by their type in transformers."""


def network_of(name: str) -> Network:
    """Return the network of KIND, or KIND:LAYERS with another number of layers."""
    kind, _, layers = name.partition(":")
    network = NETWORKS[kind]
    return replace(network, layers=int(layers)) if layers else network


def checkpoint(network: Network, folder: Path) -> Path:
    """Write a network of random weights with the tokenizer of all-MiniLM-L6-v2, and return its folder."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm(), model_max_length=network.tokens)
    settings = {
        "num_hidden_layers": network.layers,
        "max_position_embeddings": network.tokens,
        "vocab_size": len(tokenizer),
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep", "bos", "eos")},
        **network.settings,
    }
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(network.kind, **settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load_whiten(bundle: Path, device: str) -> Any:
    """Return a function from a text to its vector, computed by whiten."""
    from whiten import Encoder

    return Encoder(bundle, device=device).encode


def load_pytorch(folder: Path, device: str, precision: str, longest: int) -> Any:
    """Return a function from a text to the mean of the last hidden states, computed by PyTorch."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=longest)
    dtype = torch.float16 if precision == "fp16" else torch.float32
    network: Any = AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()

    @torch.inference_mode()
    def encode(text: str) -> NDArray[np.float32]:
        tokens = tokenizer([text], return_tensors="pt", truncation=True, max_length=longest).to(device)
        states = network(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
        vector: NDArray[np.float32] = states.float().mean(1)[0].cpu().numpy()
        return vector

    return encode


def load_openvino(folder: Path, longest: int) -> Any:
    """Return a function from a text to the mean of the last hidden states, computed by OpenVINO in float32."""
    import openvino
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=longest)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1}
    network = openvino.Core().compile_model(str(folder / OPENVINO_GRAPH), "CPU", config)

    def encode(text: str) -> NDArray[np.float32]:
        tokens = tokenizer([text], return_tensors="np", truncation=True, max_length=longest)
        states = network({name: tokens[name] for name in ("input_ids", "attention_mask")})[0]
        vector: NDArray[np.float32] = states.mean(1)[0]
        return vector

    return encode


def export_openvino(folder: Path) -> None:
    """Convert a network of PyTorch, with its scaled-dot-product attention, to OpenVINO."""
    import openvino
    import torch
    from transformers import AutoModel

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return self.network(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    example = (torch.full((2, 300), 5), torch.ones(2, 300, dtype=torch.int64))  # longer than the windows
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    program = torch.export.export(States(), example, dynamic_shapes=(axes, axes), strict=False)
    model = openvino.convert_model(program)
    openvino.save_model(model, str(folder / OPENVINO_GRAPH), compress_to_fp16=False)


def measure(engine: str, folder: Path, device: str, text: str, longest: int, runs: int) -> dict[str, Any]:
    """Return the median milliseconds, the memory in MB, and the vector of a text, computed in this process.

    A short text is computed before. The memory is the most that the process took, or what the GPU lacks since the
    engine was loaded.
    """
    name, precision = engine.split()
    before = taken_on_gpu() if device == "cuda" else 0
    if name == "PyTorch":
        encode = load_pytorch(folder, device, precision, longest)
    elif name == "OpenVINO":
        encode = load_openvino(folder, longest)
    else:
        encode = load_whiten(folder / bundle_name(engine), device)
    encode(text[:100])
    times = []
    for _ in range(runs if longest <= LONG else 1):
        start = time.perf_counter()
        vector = encode(text)
        times.append(time.perf_counter() - start)
    memory = taken_on_gpu() - before if device == "cuda" else peak_memory()
    return {"ms": 1000 * median(times), "mb": memory, "vector": vector.tolist()}


def peak_memory() -> float:
    """Return the MB that this process took at most."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def taken_on_gpu() -> float:
    """Return the MB of the GPU that are taken now."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 1e6


def measured(arguments: argparse.Namespace, engine: str, folder: Path, text: str, tokens: int) -> dict[str, Any] | None:
    """Return what `measure` gives, on a CPU in a process of its own; None, with a line on stderr, where it fails."""
    if arguments.device == "cuda":
        try:
            return measure(engine, folder, arguments.device, text, tokens, arguments.runs)
        except Exception as error:
            print(f"{engine}, {tokens} tokens: {' '.join(str(error).split())[:300]}", file=sys.stderr)
            return None
        finally:
            free_gpu()
    job = json.dumps([engine, str(folder), arguments.device, text, tokens, arguments.runs])
    command = [sys.executable, "-m", "benchmarks.long_texts", "--job", "-"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{engine}, {tokens} tokens: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def free_gpu() -> None:
    """Give back the memory of engines that are not used any more."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def export(folder: Path, longest: int, engine: str) -> bool:
    """Write what an engine opens: for whiten, the last layer, not whitened. Return False if the gate refuses it."""
    from whiten_export.pipeline.export import export_bundle
    from whiten_export.pipeline.recipe import Recipe

    name, precision = engine.split()
    if name == "OpenVINO":
        export_openvino(folder)
    elif name != "PyTorch":
        choices: dict[str, Any] = {"precision": precision, "target": name.partition(":")[2] or "cpu"}
        recipe = Recipe(str(folder), layers=(-1,), whitening=None, max_length=longest, **choices)
        try:
            export_bundle(recipe, folder / bundle_name(engine), replace=True)
        except WhitenError as error:
            print(f"{engine}: {error}", file=sys.stderr)
            return False
    return True


def bundle_name(engine: str) -> str:
    """Return the name of the folder of an engine's bundle."""
    return f"bundle-{engine}".replace(" ", "-").replace(":", "-")


def cosine(vector: list[float], reference: list[float]) -> float:
    """Return the cosine of two vectors."""
    a, b = np.asarray(vector, np.float64), np.asarray(reference, np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def compare(network: Network, arguments: argparse.Namespace, sentences: list[str], folder: Path) -> list[str]:
    """Measure one network, and return the rows of its table."""
    checkpoint(network, folder)
    lengths = [tokens for tokens in arguments.tokens if tokens <= network.tokens]
    exported = {engine for engine in arguments.engines if export(folder, max(lengths), engine)}
    tokenizer = plain_tokenizer(folder)
    rows = []
    for tokens in lengths:
        (text,) = passages(sentences, tokenizer, [tokens])
        results = {
            engine: measured(arguments, engine, folder, text, tokens) if engine in exported else None
            for engine in arguments.engines
        }
        reference = results.get(REFERENCE) or measured(arguments, REFERENCE, folder, text, tokens)
        for engine, result in results.items():
            first = f"| {network.kind} | {network.layers} | {tokens} | {engine} |"
            if result is None:
                rows.append(f"{first} fails | | |")
                continue
            distance = 1 - cosine(result["vector"], reference["vector"]) if reference else float("nan")
            rows.append(f"{first} {result['ms']:.1f} | {result['mb']:.0f} | {distance:.1e} |")
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_texts", description=__doc__)
    parser.add_argument("--texts", help="sentences, one a line")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    names = f"some of {', '.join(NETWORKS)}; KIND:LAYERS for another number of layers"
    parser.add_argument("--networks", default=",".join(NETWORKS), help=names)
    parser.add_argument("--tokens", default="512,2048,8192", type=lambda value: list(map(int, value.split(","))))
    parser.add_argument("--engines", default=f"whiten fp32,{REFERENCE}", type=lambda value: value.split(","))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        engine, folder, device, text, tokens, runs = json.load(sys.stdin)
        print(json.dumps(measure(engine, Path(folder), device, text, tokens, runs)))
        return
    sentences = list(read_texts(arguments.texts))
    networks = [network_of(name) for name in arguments.networks.split(",")]
    rows: list[str] = []
    for network in networks:
        with tempfile.TemporaryDirectory() as name:
            rows += compare(network, arguments, sentences, Path(name))
    fewer = [
        f"{network.kind} has {NETWORKS[network.kind].layers} layers where it is published"
        for network in networks
        if network.layers != NETWORKS[network.kind].layers
    ]
    command = f"long_texts --device {arguments.device} --networks {arguments.networks}"
    runs = f"one text, medians of {arguments.runs} runs, one run above {LONG:,} tokens"
    lines = [
        made_by(command, runs),
        "",
        f"Networks with random weights{''.join(f'; {line}' for line in fewer)}.",
        "",
        "| network | layers | tokens | engine | ms | MB | 1 - cosine to PyTorch fp32 |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    suffix = "-cuda" if arguments.device == "cuda" else ""
    (arguments.out / f"table{suffix}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
