"""Every row of the catalogue through `whiten-export NAME`, in each precision: how far is it from PyTorch?

The weights are random and the networks small (4 blocks, 128 wide), laid out as the hub's repositories are, in a hub
cache of their own; all-MiniLM is the real one. A network is traced once, for all precisions and for all names that have
the same one here. Run once with each version of transformers, then make the table:

    python -m benchmarks.families --out families-5.json
    python -m benchmarks.families --table families-5.json families-4.json > benchmarks/families/table.md
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import click

CACHE = Path(tempfile.mkdtemp(prefix="whiten-families-"))
os.environ |= {"HF_HUB_CACHE": str(CACHE), "HF_HUB_OFFLINE": "1"}  # before huggingface_hub is imported
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numpy as np
import onnx
import onnx_ir as ir
import transformers
from click.testing import CliRunner
from torch import nn

from support.checkpoints import save_checkpoint, sentences
from support.nasty_texts import NASTY
from whiten_export.commands.export import export
from whiten_export.pipeline.recipe import Recipe
from whiten_export.sources import pytorch
from whiten_export.sources.checkpoint import resolve
from whiten_export.sources.opening import open_model
from whiten_models.catalogue import Entry, catalogue
from whiten_runtime import Encoder
from whiten_runtime.inference.tokenizer import Tokenizer

COMMIT = "1234567890" * 4
WIDENED, KEPT = 4, 32
PRECISIONS = ("fp32", "fp16", "int8")
TEXTS = (*NASTY, *sentences(300))


@dataclass(frozen=True)
class Row:
    """What became of an entry.

    Attributes:
        name: of the entry.
        family: transformers' model type, "words" or "vectors".
        settings: layers and pooling.
        differences: worst difference of a coordinate over the norm, by precision; the error where there is no bundle.
        cosines: worst cosine, by precision.
        tokens: texts with equal ids, of all.
    """

    name: str
    family: str
    settings: str
    differences: dict[str, float | str]
    cosines: dict[str, float]
    tokens: str


def snapshot(hub_id: str) -> Path:
    """A repository's folder in the hub's cache."""
    repository = CACHE / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


def prepare(entry: Entry) -> None:
    """Put what the entry needs into the cache."""
    if entry.source == "words":
        folder = snapshot(entry.checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / str(entry.file), "w") as archive:
            archive.writestr("words.txt", word_vectors())
    elif entry.adapter_of is not None:
        save_adapter(entry)
    elif entry.source == "transformers" and entry.package is None:
        family = "spanbert" if entry.tokenizer.lowercase_override is False else entry.model_type
        save_checkpoint(family, snapshot(entry.checkpoint), WIDENED)


def word_vectors() -> str:
    words = list(dict.fromkeys(word for sentence in sentences(2000) for word in sentence.lower().split()))
    rows = np.random.default_rng(0).normal(size=(len(words), WIDENED * 32))
    return "".join(f"{word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in zip(words, rows, strict=True))


def save_adapter(entry: Entry) -> None:
    import peft
    import torch

    base = snapshot(str(entry.adapter_of))
    if not base.exists():
        save_checkpoint(entry.model_type, base, WIDENED)
    network = transformers.AutoModel.from_pretrained(base)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, task_type="FEATURE_EXTRACTION")
    adapted = peft.get_peft_model(network, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    adapted.peft_config["default"].base_model_name_or_path = entry.adapter_of
    adapted.save_pretrained(snapshot(entry.checkpoint))


def remember_traces() -> None:
    """Let equal networks share what takes most of an export's time."""
    real, known = pytorch.trace, {}

    def trace(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        digest = hashlib.sha256(type(network).__name__.encode())
        for parameter in network.parameters():
            digest.update(parameter.numpy().tobytes())
        key = digest.digest(), layers
        if key not in known:
            known[key] = ir.to_proto(real(network, layers)).SerializeToString()
        return ir.from_proto(onnx.ModelProto.FromString(known[key]))

    pytorch.trace = trace


def command(entry: Entry, precision: str, corpus: Path, out: Path) -> list[str]:
    if entry.source == "vectors":
        vectors = CACHE / "vectors.npy"
        np.save(vectors, np.random.default_rng(0).normal(size=(2000, 128)).astype(np.float32))
        return [entry.name, "--from-vectors", str(vectors), "--dim", str(KEPT), "--out", str(out)]
    layers = [] if entry.source == "words" else ["--layers", "1,-1"]
    width = [] if entry.package else ["--dim", str(KEPT)]
    fitting = ["--max-sentences", "2000"] if entry.package else ["--corpus", str(corpus)]
    rest = ["--precision", precision, *fitting]
    return [entry.name, *layers, *width, *rest, "--out", str(out)]


def equal_tokens(entry: Entry, bundle: Path) -> str:
    """How many texts have the ids that the checkpoint's own tokenizer gives."""
    model = open_model(resolve(entry.name), Recipe(entry.name, pooling=entry.pooling))
    with Encoder(bundle) as encoder:
        length = encoder.max_seq_length
    ours = Tokenizer(bundle / "tokenizer.json", length)
    got = [model.tokenizer.plain(ours.cut(ids)) for ids in ours.tokenize(TEXTS)]
    want = model.tokenizer.own_ids(TEXTS, length)
    return f"{sum(a == b for a, b in zip(got, want, strict=True))}/{len(TEXTS)}"


def measure(entry: Entry, folder: Path) -> Row:
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(sentences(800)), "utf-8")
    prepare(entry)
    differences: dict[str, float | str] = {}
    cosines, tokens = {}, "-"
    for precision in PRECISIONS if entry.source != "vectors" else PRECISIONS[:1]:
        out = folder / "bundle"
        shutil.rmtree(out, ignore_errors=True)
        result = CliRunner().invoke(export, command(entry, precision, corpus, out))
        if result.exit_code:
            differences[precision] = result.stderr.strip().splitlines()[-1]
            continue
        parity = json.loads((out / "whiten.json").read_text())["parity"]
        differences[precision], cosines[precision] = parity["max_difference"], parity["min_cosine"]
        if precision == "fp32" and entry.source != "vectors":
            tokens = equal_tokens(entry, out)
    settings = {"transformers": f"1 and last, {entry.pooling}", "words": entry.pooling, "vectors": "-"}[entry.source]
    return Row(entry.name, entry.model_type or entry.source, settings, differences, cosines, tokens)


def table(results: list[dict[str, object]]) -> str:
    versions = [f"{result['transformers']}" for result in results]
    header = ["name", "family", "layers, pooling"]
    for version in versions:
        header += [f"fp32 ({version})", "fp16", "int8", "1 - worst cosine int8", "equal tokens"]
    lines = [header, ["---"] * len(header)]
    for rows in zip(*(result["rows"] for result in results), strict=True):  # type: ignore[call-overload]
        line = [rows[0]["name"], rows[0]["family"], rows[0]["settings"]]
        for row in rows:
            line += [shown(row["differences"].get(precision, "-")) for precision in PRECISIONS]
            line += [f"{1 - row['cosines']['int8']:.1e}" if "int8" in row["cosines"] else "-", row["tokens"]]
        lines.append(line)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1e}"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), help="Write the results as JSON.")
@click.option("--table", "tables", multiple=True, type=click.Path(path_type=Path), help="Results to put side by side.")
def main(names: tuple[str, ...], out: Path | None, tables: tuple[Path, ...]) -> None:
    """Measure all entries, or those with these NAMES."""
    try:
        if tables:
            click.echo(table([json.loads(path.read_text()) for path in (*tables, *map(Path, names))]))
            return
        remember_traces()
        rows = []
        for entry in catalogue():
            if not names or entry.name in names:
                with tempfile.TemporaryDirectory() as folder:
                    rows.append(measure(entry, Path(folder)))
                click.echo(str(rows[-1]), err=True)
        result = {"transformers": transformers.__version__, "rows": [asdict(row) for row in rows]}
        if out is not None:
            out.write_text(json.dumps(result, indent=1))
        click.echo(table([result]))
    finally:
        shutil.rmtree(CACHE)


if __name__ == "__main__":
    main()
