"""Export an entry of the catalogue in each precision, and compare it with PyTorch."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from click.testing import CliRunner
from torch import nn

from benchmarks.families import CACHE
from benchmarks.families.hub_cache import prepare
from benchmarks.families.report import PRECISIONS
from support.corpus import sentences
from support.nasty_texts import NASTY
from whiten_export.commands.export import export
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.choice import SourceChoice
from whiten_export.sources.networks import pytorch
from whiten_export.sources.opening import open_model
from whiten_models.catalogue import Entry
from whiten_runtime import Encoder
from whiten_runtime.inference.tokenizer import Tokenizer

KEPT = 32
"""Dimensions that a bundle keeps."""

TEXTS = (*NASTY, *sentences(300))


@dataclass(frozen=True)
class Row:
    """Hold the figures of an entry.

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


def remember_traces() -> None:
    """Trace equal networks once, as this takes most of an export's time."""
    real = pytorch.trace
    known: dict[tuple[bytes, tuple[int, ...]], bytes] = {}

    def trace(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        digest = hashlib.sha256(type(network).__name__.encode())
        for parameter in network.parameters():
            digest.update(parameter.numpy().tobytes())
        key = digest.digest(), layers
        if key not in known:
            known[key] = ir.to_proto(real(network, layers)).SerializeToString()
        model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(known[key]))
        return model

    pytorch.trace = trace


def command(entry: Entry, precision: str, corpus: Path, out: Path) -> list[str]:
    """Return the arguments of `whiten-export` for an entry."""
    if entry.source == "vectors":
        vectors = CACHE / "vectors.npy"
        np.save(vectors, np.random.default_rng(0).normal(size=(2000, 128)).astype(np.float32))
        return [entry.name, "--from-vectors", str(vectors), "--dim", str(KEPT), "--out", str(out)]
    layers = [] if entry.source == "words" else ["--layers", "1,-1"]
    width = [] if entry.package else ["--dim", str(KEPT)]
    fitting = ["--max-sentences", "2000"] if entry.package else ["--corpus", str(corpus)]
    rest = ["--whitening", "pca", "--precision", precision, *fitting]
    return [entry.name, *layers, *width, *rest, "--out", str(out)]


def equal_tokens(entry: Entry, bundle: Path) -> str:
    """Count the texts that have the ids which the checkpoint's own tokenizer gives."""
    model = open_model(resolve(entry.name), SourceChoice(entry.name, pooling=entry.pooling))
    with Encoder(bundle) as encoder:
        length = encoder.max_seq_length
    ours = Tokenizer(bundle / "tokenizer.json", length)
    got = [model.tokenizer.plain(ours.cut(ids)) for ids in ours.tokenize(TEXTS)]
    want = model.tokenizer.own_ids(TEXTS, length)
    return f"{sum(a == b for a, b in zip(got, want, strict=True))}/{len(TEXTS)}"


def measure(entry: Entry, folder: Path) -> Row:
    """Export an entry in each precision, and return its figures."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(sentences(800)), "utf-8")
    prepare(entry)
    differences: dict[str, float | str] = {}
    cosines: dict[str, float] = {}
    tokens = "-"
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
