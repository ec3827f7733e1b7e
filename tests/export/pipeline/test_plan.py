"""Test plans of exports: what they say, and that nothing is downloaded or written."""

import json
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from support.checkpoints import save_checkpoint, save_long_checkpoint, write_json
from support.cli import ok, refused
from support.hub import Hub
from support.published import save_published
from support.vectors import write_word_vectors
from whiten import Recipe
from whiten_export import plan
from whiten_export.plan import Plan, plan_export
from whiten_export.sources.open_model import open_model
from whiten_export.sources.resolve import resolve


def stored(folder: Path) -> int:
    """Return the number of weights in the file of a checkpoint."""
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return sum(int(np.prod(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert", "mpnet", "llama", "modernbert", "xlm", "gpt2"])
def test_weights_are_counted_by_the_config(checkpoint: Callable[[str], Path], family: str) -> None:
    folder = checkpoint(family)
    model = open_model(resolve(str(folder)))
    whole, low = model.count_weights((4,)), model.count_weights((0, 1))
    assert whole.loaded == low.loaded == stored(folder)
    assert whole.exported <= whole.loaded
    assert low.exported < whole.exported or family == "albert"  # all of whose blocks have the same weights


def test_a_decoder_of_t5_is_not_counted(checkpoint: Callable[[str], Path]) -> None:
    model = open_model(resolve(str(checkpoint("t5"))))
    assert model.count_weights((4,)).loaded < stored(checkpoint("t5"))


def test_nothing_is_written_and_json_has_the_plan(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(ok("export", checkpoint("bert"), "--layers", "1,-1", "--plan", "--json").stdout)
    manifest = found["manifest"]
    assert found["bundle"] == "bundles/tiny-bert-l1-l4"
    assert (manifest["layers"], manifest["source"]["num_hidden_layers"], manifest["pooling"]) == ([1, 4], 4, "mean")
    assert (found["whitening"], found["sentences"], manifest["dimension"]) == ("auto", 384, 32)
    assert (manifest["max_seq_length"], manifest["precision"], found["warnings"]) == (48, "fp32", [])
    assert found["memory_bytes"] < found["usable_bytes"]
    shown = ok("export", checkpoint("bert"), "--layers", "1,-1", "--plan")
    assert "whitening   auto, on 384 sentences" in shown.stdout
    assert "wrote" not in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_an_export_refuses_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    ok("export", checkpoint("bert"), "--whitening", "none", "--out", out)
    assert "--force" in refused("export", checkpoint("bert"), "--out", out, "--plan")
    assert json.loads(ok("export", checkpoint("bert"), "--out", out, "--force", "--plan", "--json").stdout)["weights"]
    assert "not a bundle" in refused("export", checkpoint("bert"), "--out", tmp_path, "--plan")
    assert "layer" in refused("export", checkpoint("bert"), "--layers", "9", "--plan")
    assert "--plan is for models" in refused("export", "mine", "--from-vectors", "a.npy", "--plan")


def test_without_torch_no_weights_are_downloaded(
    checkpoint: Callable[[str], Path], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export, not a plan: it ends before the weights, by which it could not be made."""

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    hub.repositories["org/plain"] = {path.name: path.read_bytes() for path in checkpoint("bert").iterdir()}
    monkeypatch.setattr("whiten_export.sources.open_model.version", version)
    assert "needs torch; install it" in refused("export", "org/plain", code=1)
    assert "config.json" in hub.fetched
    assert "model.safetensors" not in hub.fetched


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_too_little_memory_is_told_before_the_work(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(plan, "usable_memory", lambda: 100_000_000)
    result = ok("export", checkpoint("bert"), "--precision", precision, "--plan", "--json")
    (warning,) = json.loads(result.stdout)["warnings"]
    assert f"in {precision} takes about 0.6 GB of memory, and this process may use 0.1 GB" in warning
    said = refused("export", checkpoint("bert"), "--precision", precision, "--corpus", tmp_path / "no", "--plan")
    assert "no" in said


def test_an_export_warns_as_its_plan_does(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "usable_memory", lambda: 100_000_000)
    lines = ok("export", checkpoint("bert"), "--whitening", "none", "--out", tmp_path / "b").stderr.splitlines()
    assert ["takes about 0.6 GB of memory" in line for line in lines[:2]] == [False, True]


def test_the_network_of_a_repository_is_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    """LaBSE's layout: a network, and a Dense that is read because the vectors' width is its own."""
    folder = save_published("labse", tmp_path / "m")
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.repositories["some/labse"] = files
    found = plan_export(Recipe("some/labse"))
    assert "model.safetensors" not in hub.fetched
    assert any(name.endswith("Dense/model.safetensors") for name in hub.fetched)
    assert found == plan_of_folder(folder, found)
    assert "model.safetensors" in files


def plan_of_folder(folder: Path, found: Plan) -> Plan:
    import msgspec

    local = plan_export(Recipe(str(folder)), Path(found.bundle))
    theirs = found.manifest.source
    named = {"model": theirs.model, "checkpoint": theirs.checkpoint, "revision": theirs.revision}
    source = msgspec.structs.replace(local.manifest.source, **named)
    return msgspec.structs.replace(local, manifest=msgspec.structs.replace(local.manifest, source=source))


def test_weights_in_parts_and_pickles_are_not_downloaded(
    hub: Hub, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint("bert")
    described = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}
    index = json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}).encode()
    hub.repositories["some/parts"] = described | {
        "model.safetensors.index.json": index,
        "model-00001-of-00001.safetensors": b"weights",
    }
    hub.repositories["some/pickled"] = described | {"pytorch_model.bin": b"weights"}
    for name in ("parts", "pickled"):
        assert plan_export(Recipe(f"some/{name}")).weights == stored(folder)
    assert not {name for name in hub.fetched if name.endswith((".safetensors", ".bin"))}


def test_tables_are_planned_too(tmp_path: Path) -> None:
    write_word_vectors(tmp_path / "words.txt", ["the cat sat", "rain falls"], 12)
    found = plan_export(Recipe(str(tmp_path / "words.txt"), whitening=None))
    source, manifest = found.manifest.source, found.manifest
    assert (manifest.layers, source.num_hidden_layers, manifest.dimension) == ((0,), 0, 12)
    assert found.whitening is None


def test_memory_grows_with_weights_and_texts(tmp_path: Path) -> None:
    small = save_checkpoint("llama", tmp_path / "small")
    wide = save_checkpoint("llama", tmp_path / "wide", 8, max_position_embeddings=40_000)
    write_json(
        wide / "tokenizer_config.json",
        json.loads((wide / "tokenizer_config.json").read_text()) | {"model_max_length": 40_000},
    )
    first, second = (plan_export(Recipe(str(folder))) for folder in (small, wide))
    assert second.memory_bytes > first.memory_bytes
    assert second.seconds >= first.seconds
    assert plan_export(Recipe(str(small), precision="int8")).work_bytes > first.work_bytes
    longest = plan_export(Recipe(str(wide), max_length=40_000))
    assert longest.memory_bytes > second.memory_bytes
    assert longest.seconds > second.seconds


def test_memory_grows_with_layers_and_pieces_and_where_weights_are_stored_in_half_precision(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def memory(folder: Path, layer: int) -> int:
        return plan_export(Recipe(str(folder), layers=(0, layer), whitening=None)).memory_bytes

    folder = checkpoint("bert")
    half = save_half(folder, tmp_path / "half")
    assert memory(folder, 1) < memory(folder, 4) < memory(half, 4)
    pieces = checkpoint("xlm-roberta")
    assert memory(pieces, 1) > 600_000_000 + 2800 * open_model(resolve(str(pieces))).vocab_size


def save_half(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text("utf-8"))
    name = "dtype" if "dtype" in config else "torch_dtype"
    write_json(copy / "config.json", config | {name: "float16"})
    return copy


def test_memory_of_attention_that_is_not_fused_grows_with_the_square_of_the_length(tmp_path: Path) -> None:
    def memory(family: str, length: int) -> int:
        folder = save_long_checkpoint(family, tmp_path / f"{family}-{length}", length)
        plan = plan_export(Recipe(str(folder), layers=(0, 1), whitening=None, max_length=length))
        return plan.memory_bytes - 600_000_000

    assert memory("t5", 2048) > 3 * memory("t5", 1024)
    assert memory("bert", 2048) < 2.5 * memory("bert", 1024)
