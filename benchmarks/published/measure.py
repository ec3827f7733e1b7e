"""Export a row of the catalogue in each precision with the real command, and compare it with sentence-transformers."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from support.checkpoints import FAMILIES, save_checkpoint
from support.corpus import sentences
from support.published import PUBLISHED, save_published
from whiten_export.commands.export import export
from whiten_models.catalogue import Entry
from whiten_runtime import Encoder
from whiten_runtime.bundle.parity import Agreement, compare

PRECISIONS = ("fp32", "fp16", "int8")

LONG = "Wind and rain, words and words. " * 40
TEXTS = (*sentences(60)[20:60], "a", "  blanks around  ", "今日天気 über den SEE", LONG)


class Figures(msgspec.Struct, frozen=True):
    """Holds the figures of a row.

    Attributes:
        name: name in the catalogue.
        modules: what follows the network in the folder.
        prompts: number of prompts that the bundle carries and that were compared.
        reference: program that the bundle was compared with.
        cosines: worst cosine by precision.
        differences: worst difference of a coordinate over the norm, by precision.
        refused: error by precision, where the export refused it.
        failure: why there are no figures; None if there are.
    """

    name: str
    modules: str
    prompts: int
    reference: str
    cosines: Mapping[str, float]
    differences: Mapping[str, float]
    refused: Mapping[str, str] = {}
    failure: str | None = None


@dataclass(frozen=True)
class Case:
    """Holds what is exported and compared.

    Attributes:
        folder: folder of the model.
        options: options of `whiten-export`.
        peer: model of sentence-transformers that gives the same vectors; None if there is none.
        modules: what follows the network.
    """

    folder: Path
    options: tuple[str, ...]
    peer: SentenceTransformer | None
    modules: str


def measure(entry: Entry, work: Path, precisions: Sequence[str] = PRECISIONS) -> Figures:
    """Make the folder of an entry, export it in each precision, and return its figures."""
    if entry.source in ("words", "vectors"):
        return _failed(entry, "no network")
    row = PUBLISHED.get(entry.name)
    if row is None and entry.as_published:
        return _failed(entry, "needs its own code" if entry.remote_code else "no folder in the tests")
    if row is not None and row.missing is not None:
        return _failed(entry, row.missing)
    case = _case(entry, work / entry.name)
    cosines: dict[str, float] = {}
    differences: dict[str, float] = {}
    refused: dict[str, str] = {}
    prompts, reference = 0, ""
    for precision in precisions:
        out = work / "bundle"
        shutil.rmtree(out, ignore_errors=True)
        arguments = [str(case.folder), *case.options, "--precision", precision, "--out", str(out)]
        result = CliRunner().invoke(export, arguments)
        if result.exit_code:
            refused[precision] = result.stderr.strip().splitlines()[-1]
            continue
        with Encoder(out) as encoder:
            agreements = _agreements(encoder, case.peer)
            reference = encoder.manifest.parity.reference if encoder.manifest.parity else ""
            prompts = len([text for text in encoder.prompts.values() if text])
        cosines[precision] = min(agreement.min_cosine for agreement in agreements)
        differences[precision] = max(agreement.max_difference for agreement in agreements)
    shutil.rmtree(case.folder)
    name = "sentence-transformers" if case.peer is not None else reference.split(",")[0]
    return Figures(entry.name, case.modules, prompts, name, cosines, differences, refused)


def _case(entry: Entry, folder: Path) -> Case:
    row = PUBLISHED.get(entry.name)
    if row is not None:
        save_published(entry.name, folder)
    if row is not None and not row.plain:
        names = [type(module).__name__ for module in row.modules if type(module).__name__ != "Transformer"]
        return Case(folder, (), _float32(SentenceTransformer(str(folder), device="cpu")), ", ".join(names))
    if row is not None:  # a repository of transformers: its own tool is in tests/parity/test_tuned_systems.py
        own: tuple[str, ...] = ("--layers", "-1", "--pooling", entry.pooling, "--whitening", "none")
        return Case(folder, own, None, f"{entry.pooling} of its own tool")
    family = "spanbert" if entry.tokenizer.lowercase_override is False else entry.model_type
    assert family in FAMILIES, family
    save_checkpoint(family, folder)
    network = modules.Transformer(str(folder), max_seq_length=48)
    if network.tokenizer.pad_token is None:  # GPT-2 and LLaMA have none; each text is alone
        network.tokenizer.pad_token = network.tokenizer.eos_token
    pooling = modules.Pooling(network.get_embedding_dimension(), pooling_mode="mean")
    peer = _float32(SentenceTransformer(modules=[network, pooling], device="cpu"))
    options = ("--layers", "-1", "--pooling", "mean", "--whitening", "none", "--max-length", "48")
    return Case(folder, options, peer, "mean of the last layer")


def _float32(model: SentenceTransformer) -> SentenceTransformer:
    return model.to(torch.float32).eval()


def _agreements(encoder: Encoder, peer: SentenceTransformer | None) -> list[Agreement]:
    """Compare texts without a prompt, and with each prompt."""
    if peer is None:
        return [encoder.verify()]
    found = []
    for prompt in dict.fromkeys(("", *encoder.prompts.values())):
        texts = [text for text in TEXTS if encoder.token_count(prompt + text)]
        want = peer.encode(texts, prompt=prompt, batch_size=1, show_progress_bar=False)
        found.append(compare(encoder.encode(texts, prompt=prompt), want))
    return found


def _failed(entry: Entry, why: str) -> Figures:
    return Figures(entry.name, ", ".join(entry.modules), 0, "", {}, {}, failure=why)
