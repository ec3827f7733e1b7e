"""Exports of full-size networks with random weights: seconds, sizes, peak memory. Prints a table.

Run as `python -m benchmarks.full_size > benchmarks/full_size/table.md`; needs some 20 GB of disk and 10 GB of memory.
Peak memory is sampled from /proc every 50 ms: anonymous pages, which the process alone pays for, and all resident
pages, which include files that are mapped. Both are divided by the size of the graph's weights in float32. The
reference is the model in float64, which is twice that or more.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))


@dataclass(frozen=True)
class Size:
    """A network as it is on the hub.

    Attributes:
        family: of `support.checkpoints`, for the tokenizer's files.
        config: settings that are not the architecture's defaults.
        options: for whiten-export.
    """

    family: str
    config: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ("--layers", "1,-1", "--max-sentences", "2000", "--dim", "256")


_MEDIUM = {"n_embd": 1024, "n_layer": 24, "n_head": 16}
_T5 = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_decoder_layers": 1, "num_heads": 12}
_LARGE_LLAMA = {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 12, "num_attention_heads": 16}
SIZES = {
    "BERT-base": Size("bert"),
    "RoBERTa-base": Size("roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "DistilBERT": Size("distilbert"),
    "DeBERTa-base": Size(
        "deberta",
        {
            "vocab_size": 50265,
            "relative_attention": True,
            "pos_att_type": "c2p|p2c",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "T5-base": Size("t5", _T5),
    "GPT-2-medium": Size("gpt2", _MEDIUM),
    "LaBSE": Size("bert", {"vocab_size": 501153}),
    "LLaMA, 12 blocks of 2,048": Size(
        "llama",
        _LARGE_LLAMA,
        ("--layers", "1,-1", "--max-sentences", "600", "--dim", "128", "--max-length", "128"),
    ),
}

_MAKE = """
import json, sys
sys.path.insert(0, sys.argv[3])
import torch, transformers
from pathlib import Path
from support.checkpoints import FAMILIES, save_checkpoint
folder, (family, config) = Path(sys.argv[1]), json.loads(sys.argv[2])
save_checkpoint(family, folder)
small = transformers.AutoConfig.from_pretrained(folder)
ids = {name: getattr(small, name) for name in FAMILIES[family].ids}
torch.manual_seed(0)
full = transformers.AutoConfig.for_model(FAMILIES[family].model_type, **config | ids)
transformers.AutoModel.from_config(full).save_pretrained(folder)
described = json.loads((folder / "tokenizer_config.json").read_text())
(folder / "tokenizer_config.json").write_text(json.dumps(described | {"model_max_length": 512}))
"""


def peak_memory(command: list[str]) -> tuple[float, dict[str, int], str]:
    """Run a command: seconds, largest bytes of the fields of /proc/PID/status, and what it wrote to stdout."""
    started, peaks = time.monotonic(), {"RssAnon": 0, "VmRSS": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            except OSError:
                break
            for line in lines:
                name, _, rest = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], 1024 * int(rest.split()[0]))
            time.sleep(0.05)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    return time.monotonic() - started, peaks, output


def main() -> None:
    names = sys.argv[1:] or list(SIZES)
    tests = str(Path(__file__).parents[2] / "tests")
    whiten = Path(sys.executable).with_name("whiten")
    print(
        "| network | float32 weights | export | bundle | worst difference | anonymous / model | resident / model "
        "| verify |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        size = SIZES[name]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, bundle = Path(folder, "checkpoint"), Path(folder, "bundle")
            made = json.dumps([size.family, size.config])
            subprocess.run([sys.executable, "-c", _MAKE, str(checkpoint), made, tests], check=True)
            weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
            command = [
                str(whiten.with_name("whiten-export")),
                str(checkpoint),
                *size.options,
                "--out",
                str(bundle),
                "--json",
            ]
            seconds, peaks, output = peak_memory(command)
            result = json.loads(output)
            model = result["manifest"]["files"].get("onnx/model.onnx_data", {"bytes": 0})["bytes"]
            verified, _, _ = peak_memory([str(whiten), "verify", str(bundle)])
            print(
                f"| {name} | {weights / 1e6:,.0f} MB | {seconds:.0f} s | {result['bytes'] / 1e6:,.0f} MB "
                f"| {result['manifest']['parity']['max_difference']:.1e} | {peaks['RssAnon'] / model:.2f} "
                f"| {peaks['VmRSS'] / model:.2f} | {verified:.0f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
