"""Export full-size networks with random weights, and print a table of seconds, sizes and peak memory.

Run as `python -m benchmarks.full_size > benchmarks/full_size/table.md`; needs some 20 GB of disk and 10 GB of memory.
Peak memory is sampled from /proc every 50 ms: anonymous pages, which the process alone pays for, and all resident
pages, which include files that are mapped. Both are divided by the size of the graph's weights in float32. The
reference is the model in float64, which is twice that or more.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import made_by
from benchmarks.process_memory import memory


@dataclass(frozen=True)
class Size:
    """Describe a network as it is on the hub.

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


def peak_memory(command: list[str]) -> tuple[float, dict[str, int], str]:
    """Run a command, and return its seconds, its largest memory in bytes by field, and its output."""
    started, peaks = time.monotonic(), {"RssAnon": 0, "VmRSS": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            try:
                now = memory(process.pid)
            except OSError:
                break
            peaks = {name: max(peak, now.get(name, 0)) for name, peak in peaks.items()}
            time.sleep(0.05)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    return time.monotonic() - started, peaks, output


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full_size", description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"some of {', '.join(SIZES)}; default all")
    names = parser.parse_args().networks or list(SIZES)
    if unknown := set(names) - set(SIZES):
        parser.error(f"no such network: {', '.join(sorted(unknown))}")
    print(made_by("full_size", "one run each") + "\n")
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
            make = [sys.executable, "-m", "benchmarks.full_size.checkpoint", str(checkpoint), made]
            subprocess.run(make, check=True)
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
