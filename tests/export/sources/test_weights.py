"""Test which weight files of a folder count: those that transformers and peft load, and no stray beside them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from support.checkpoints import change_config, save_adapter, write_json
from whiten import UsageError, WhitenError
from whiten_export.sources.network import load_config, load_network
from whiten_export.sources.resolve import resolve

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX, PICKLED_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def write_whole(folder: Path, name: str = WHOLE) -> None:
    weights = load_file(folder / WHOLE)
    (folder / WHOLE).unlink()
    torch.save(weights, folder / name) if name.endswith(".bin") else save_file(weights, folder / name, {"format": "pt"})


def write_parts(folder: Path, kind: str = WHOLE) -> None:
    """Write the weights in two parts with their index, in place of the whole."""
    weights = load_file(folder / WHOLE)
    (folder / WHOLE).unlink()
    stem, _, suffix = kind.rpartition(".")
    parts = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    placed = {name: parts[index % 2] for index, name in enumerate(weights)}
    for part in parts:
        inside = {name: tensor for name, tensor in weights.items() if placed[name] == part}
        torch.save(inside, folder / part) if suffix == "bin" else save_file(inside, folder / part, {"format": "pt"})
    write_json(folder / f"{kind}.index.json", {"metadata": {}, "weight_map": placed})


def write_named(folder: Path) -> None:
    write_whole(folder, "own.safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", config | {"transformers_weights": "own.safetensors"})


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("bert"), tmp_path / "tiny"))


def load(folder: Path) -> torch.nn.Module:
    found = resolve(str(folder))
    return load_network(found, load_config(found, False), False)[0]


@pytest.mark.parametrize(
    ("write", "weights", "strays"),
    [
        (write_whole, [WHOLE], [INDEX, *PARTS, PICKLED, PICKLED_INDEX]),
        (write_whole, [WHOLE], ["model_int8.safetensors", "model.fp16.safetensors", "model-old.safetensors"]),
        (write_parts, list(PARTS), ["model-00003-of-00003.safetensors", "model.int8.safetensors", PICKLED]),
        (lambda folder: write_whole(folder, PICKLED), [PICKLED], ["pytorch_model_int8.bin", PICKLED_INDEX, *PARTS]),
        (
            lambda folder: write_parts(folder, PICKLED),
            ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"],
            ["pytorch_model_int8.bin", "pytorch_model-00003-of-00003.bin", *PARTS],
        ),
        (write_named, ["own.safetensors"], [WHOLE, INDEX, PICKLED]),
    ],
    ids=["whole", "precisions", "parts", "pickled", "pickled parts", "named"],
)
def test_only_files_that_transformers_loads_count(
    folder: Path, write: Callable[[Path], None], weights: list[str], strays: list[str]
) -> None:
    write(folder)
    plain = resolve(str(folder))
    assert [path.name for path in plain.weights] == weights
    for name in strays:
        (folder / name).write_text(POINTER)
    found = resolve(str(folder))
    assert (found.weights, found.weights_sha256) == (plain.weights, plain.weights_sha256)
    assert load(folder)  # which transformers does without a look at the strays
    for name in weights:
        content = (folder / name).read_bytes()
        (folder / name).write_text(POINTER)
        with pytest.raises((OSError, SafetensorError, UnpicklingError)):  # and without these it does not
            transformers.AutoModel.from_pretrained(folder)
        with pytest.raises(WhitenError, match=name):
            load(folder)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        ({"metadata": {}, "weight_map": {"a": PARTS[0]}}, UsageError, PARTS[0]),
        ({"metadata": {}, "weight_map": {"a": "../x"}}, WhitenError, "'../x'"),
        ({"weight_map": ["a"]}, WhitenError, "weight_map"),
        ([], WhitenError, "list"),
    ],
)
def test_an_index_that_leads_nowhere_is_refused(
    folder: Path, index: object, kind: type[WhitenError], message: str
) -> None:
    (folder / WHOLE).unlink()
    write_json(folder / INDEX, index)
    with pytest.raises(kind, match=message):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["model_int8.safetensors", "model.fp16.safetensors", PARTS[0]])
def test_a_folder_with_nothing_but_strays_has_no_weights(folder: Path, name: str) -> None:
    (folder / WHOLE).rename(folder / name)
    with pytest.raises(UsageError, match="weights"):
        resolve(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_only_the_file_that_peft_loads_counts_of_an_adapter(
    checkpoint: Callable[[str], Path], tmp_path: Path, weights: str
) -> None:
    safetensors = weights.endswith(".safetensors")
    adapter = save_adapter(checkpoint("bert"), tmp_path / "a", "AutoModel", None, safe_serialization=safetensors)
    change_config(adapter, base_model_name_or_path=str(checkpoint("bert")))
    plain = resolve(str(adapter))
    for name in ("adapter_model_old.safetensors", *(["adapter_model.bin"] if safetensors else [])):
        (adapter / name).write_text(POINTER)
    found = resolve(str(adapter))
    assert (found.weights, found.weights_sha256) == (plain.weights, plain.weights_sha256)
    assert adapter / weights in found.weights
    assert load(adapter)
