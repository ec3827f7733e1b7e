"""Test exports without PyTorch: they write the bytes that an export with PyTorch writes, or say what to install."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.checkpoints import change_json
from support.cli import python
from support.hidden import hide_torch
from support.hub import make_snapshot
from support.real_weights import real_weights
from support.sts import write_paper_layout
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.open_model import open_model
from whiten_export.sources.recorded import RecordedModel, open_recorded
from whiten_export.sources.resolve import resolve
from whiten_models.catalogue import catalogue, recording_folder
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.errors import WhitenError

Export = Callable[..., "subprocess.CompletedProcess[str]"]

EXPORT = "from whiten_export.commands.export import main\nmain()"

MEASURED = {"README.md", "whiten.json"}
"""Files that name the program that computed what was compared."""


@pytest.fixture
def export_without_torch(tmp_path: Path) -> Export:
    """Return a function that runs `whiten-export` with some arguments."""
    path = os.pathsep.join([str(hide_torch(tmp_path)), *sys.path])
    return lambda *arguments: python(EXPORT, *arguments, env=os.environ | {"PYTHONPATH": path})


def check_equal(ours: Path, theirs: Path) -> None:
    """Check that bundles have the same bytes, and the same manifest but for the names of programs and hashes."""
    files, others = ({path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (ours, theirs))
    assert files == others
    different = {str(file) for file in files if (ours / file).read_bytes() != (theirs / file).read_bytes()}
    if "probes.safetensors" in different:  # PyTorch's last bits differ between kinds of processors
        probes, known = load_file(ours / "probes.safetensors"), load_file(theirs / "probes.safetensors")
        for name, rows in probes.items():
            np.testing.assert_allclose(rows, known[name], rtol=0, atol=1e-6)
        different.remove("probes.safetensors")
    assert different <= MEASURED
    manifest, known = (json.loads((root / "whiten.json").read_text()) for root in (ours, theirs))
    assert manifest["parity"]["reference"] == known["parity"]["reference"].replace(",", " (recorded),")
    assert manifest["parity"]["vectors"] == known["parity"]["vectors"]
    for name in ("manifest_sha256", "name", "files", "parity", "published"):
        del manifest[name], known[name]
    assert manifest == known


def skip_other_versions(name: str) -> None:
    """Skip where the installed programs are not those of the recording."""
    folder = next(filter(None, (recording_folder(entry) for entry in catalogue() if entry.name == name)))
    recorded = json.loads((folder / "recording.json").read_text("utf-8"))["versions"]
    here = {program: version(program) for program in recorded}
    if {program: text.split("+")[0] for program, text in here.items()} != {
        program: text.split("+")[0] for program, text in recorded.items()
    }:
        pytest.skip(f"the recording is of {recorded}, here are {here}")


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--precision", "int8"], marks=pytest.mark.slow),
        pytest.param(["--precision", "fp16"], marks=pytest.mark.slow),
        pytest.param(["--whitening", "pca", "--dim", "100"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_bundle_has_the_bytes_of_an_export_with_torch(
    options: Sequence[str], export_without_torch: Export, tmp_path: Path
) -> None:
    skip_other_versions("minilm")
    done = export_without_torch("minilm", *options, "--out", tmp_path / "recorded")
    assert done.returncode == 0, done.stderr
    assert f"recorded with torch {version('torch').split('+')[0]}" in done.stderr
    named = dict(zip(options[::2], options[1::2], strict=True))
    choices: dict[str, Any] = {name.removeprefix("--"): value for name, value in named.items()}
    choices |= {"dim": int(choices["dim"])} if "dim" in choices else {}
    export_bundle(Recipe("minilm", **choices), tmp_path / "torch")
    check_equal(tmp_path / "recorded", tmp_path / "torch")


@pytest.mark.slow
def test_mpnet_from_the_cache_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, export_without_torch: Export, tmp_path: Path
) -> None:
    skip_other_versions("all-mpnet")
    shutil.copytree(
        real_weights("all-mpnet-base-v2"), make_snapshot(tmp_path, "sentence-transformers/all-mpnet-base-v2")
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = export_without_torch("all-mpnet", "--out", tmp_path / "recorded")
    assert done.returncode == 0, done.stderr
    assert python(EXPORT, "all-mpnet", "--out", tmp_path / "torch").returncode == 0
    check_equal(tmp_path / "recorded", tmp_path / "torch")
    with Encoder(tmp_path / "recorded") as encoder:
        assert GATES["fp32"].passes(encoder.verify())


@pytest.mark.parametrize(
    "options", [("--layers", "0,1"), ("--pooling", "cls"), ("--max-length", "128"), ("--layers", "6,5")], ids=" ".join
)
def test_other_choices_say_what_to_install(
    options: tuple[str, str], export_without_torch: Export, tmp_path: Path
) -> None:
    done = export_without_torch("minilm", *options, "--out", tmp_path / "b")
    assert done.returncode == 1
    assert "layer 6, pooling mean, max-length 256; install PyTorch" in done.stderr
    assert "'.[export]'" in done.stderr
    assert not (tmp_path / "b").exists()


def test_other_models_say_what_to_install(
    minilm_checkpoint: Path, export_without_torch: Export, tmp_path: Path
) -> None:
    """A folder is not the catalogue's model, though its files may be."""
    done = export_without_torch(minilm_checkpoint, "--out", tmp_path / "b")
    assert done.returncode == 1
    assert "needs torch; install it" in done.stderr


@pytest.fixture
def minilm(minilm_checkpoint: Path, tmp_path: Path) -> Checkpoint:
    """A copy of MiniLM's files, as the catalogue names them."""
    folder = shutil.copytree(minilm_checkpoint, tmp_path / "model")
    known = resolve("minilm")
    assert known.authors is not None
    steps = [replace(step, folder=folder / step.folder.relative_to(minilm_checkpoint)) for step in known.authors.steps]
    authors = replace(known.authors, steps=tuple(steps))
    return replace(known, directory=folder, root=folder, authors=authors, weights=(folder / "model.safetensors",))


def recorded(minilm: Checkpoint) -> RecordedModel:
    model = open_recorded(minilm)
    assert model is not None
    return model


def last_bit(tensors: dict[str, Any]) -> None:
    tensors["encoder.layer.3.output.dense.weight"].view(np.int32)[7, 7] ^= 1


def without_one(tensors: dict[str, Any]) -> None:
    del tensors["embeddings.LayerNorm.bias"]


def swapped(tensors: dict[str, Any]) -> None:
    first, second = (f"encoder.layer.{layer}.output.dense.weight" for layer in (1, 2))
    tensors[first], tensors[second] = tensors[second], tensors[first]


def other_shape(tensors: dict[str, Any]) -> None:
    tensors["embeddings.token_type_embeddings.weight"] = tensors["embeddings.token_type_embeddings.weight"].reshape(
        4, -1
    )


@pytest.mark.parametrize("change", [last_bit, without_one, swapped, other_shape])
def test_other_weights_are_refused(change: Callable[[dict[str, Any]], None], minilm: Checkpoint) -> None:
    tensors = load_file(minilm.weights[0])
    change(tensors)
    save_file(tensors, minilm.weights[0])
    with pytest.raises(WhitenError, match="another set of weights than the one that was recorded"):
        recorded(minilm).hidden_states((6,), "mean")


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"layer_norm_eps": 1e-5}),
        ("config.json", {"num_hidden_layers": 5}),
        ("config.json", {"is_decoder": True}),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}),
        ("tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"}),
        ("special_tokens_map.json", {"pad_token": "[MASK]"}),
        ("sentence_bert_config.json", {"max_seq_length": 128}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("config_sentence_transformers.json", {"prompts": {"query": "Q: "}}),
        ("config_sentence_transformers.json", {"truncate_dim": 100}),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name(file: str, setting: dict[str, Any], minilm: Checkpoint) -> None:
    change_json(minilm.directory / file, **setting)
    (name,) = setting
    with pytest.raises(WhitenError, match=f"another {file} \\({name}\\) than the one that was recorded"):
        recorded(minilm)


def test_modules_that_differ_are_refused(minilm: Checkpoint) -> None:
    path = minilm.directory / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8"))[:2]), "utf-8")
    with pytest.raises(WhitenError, match=r"another modules\.json than"):
        recorded(minilm)


def test_who_wrote_the_files_changes_nothing(minilm: Checkpoint) -> None:
    change_json(minilm.directory / "config.json", transformers_version="5.0.0", _name_or_path="copy", dtype="float32")
    change_json(minilm.directory / "tokenizer_config.json", name_or_path="copy")
    recorded(minilm)


def test_another_tokenizer_is_refused(minilm: Checkpoint) -> None:
    path = minilm.directory / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    content["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(WhitenError, match="another tokenizer.json than"):
        recorded(minilm)


def test_weights_in_another_format_have_no_recording(minilm: Checkpoint) -> None:
    assert open_recorded(replace(minilm, weights=(minilm.directory / "pytorch_model.bin",))) is None


def test_damaged_weights_are_named(minilm: Checkpoint) -> None:
    minilm.weights[0].write_bytes(minilm.weights[0].read_bytes()[:1000])
    with pytest.raises(WhitenError, match=r"model\.safetensors: is damaged"):
        recorded(minilm).hidden_states((6,), "mean")


def test_what_is_no_parameter_does_not_count(minilm: Checkpoint) -> None:
    """A table of positions as numbers may be another, or missing: the graph has its own."""
    tensors = load_file(minilm.weights[0])
    graph = recorded(minilm).hidden_states((6,), "mean").model
    for change in ({"embeddings.position_ids": tensors["embeddings.position_ids"][:, ::-1].copy()}, None):
        without = {name: array for name, array in tensors.items() if name != "embeddings.position_ids"}
        save_file(without | (change or {}), minilm.weights[0])
        other = recorded(minilm).hidden_states((6,), "mean").model
        for name, value in graph.graph.initializers.items():
            known = other.graph.initializers[name].const_value
            assert value.const_value is not None
            assert known is not None
            np.testing.assert_array_equal(value.const_value.numpy(), known.numpy())


@pytest.mark.parametrize("name", ["minilm", "all-mpnet"])
def test_every_weight_of_a_graph_is_hashed(name: str) -> None:
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    folder = recording_folder(entry)
    assert folder is not None
    recording = json.loads((folder / "recording.json").read_text("utf-8"))
    assert {weight["tensor"] for weight in recording["weights"].values()} <= set(recording["parameters"])


def test_a_sweep_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra test-all")
    write_paper_layout(tmp_path / "sts", ("STS-B",), 500)
    path = os.pathsep.join([str(hide_torch(tmp_path)), *sys.path])
    code = "from whiten_runtime.commands.console import run; from whiten_evaluation.commands.sweep import sweep; "
    options = ("minilm", "--data", tmp_path / "sts", "--out", tmp_path / "sweep")
    done = python(f"{code}run(sweep, 'sweep')", *options, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    assert "can be exported only as it was recorded" in done.stderr


def test_a_text_that_was_not_recorded_is_refused(minilm: Checkpoint) -> None:
    reference = recorded(minilm).reference((6,), "mean")
    with pytest.raises(WhitenError, match="no vector of a text of 3 tokens"):
        reference.pooled(np.array([[101, 2054, 102]]), np.ones((1, 3), np.int64))


def test_recorded_model_describes_what_torch_describes(minilm: Checkpoint) -> None:
    """Compare with what transformers says, and the recorded vectors with those that PyTorch computes here."""
    with_torch, without = open_model(minilm), recorded(minilm)
    for name in ("layers", "positions", "stated_positions", "vocab_size", "letters", "batch_limit", "expert_bytes"):
        assert getattr(with_torch, name) == getattr(without, name), name
    assert with_torch.count_weights((6,)) == without.count_weights((6,))
    assert replace(with_torch.tokenizer, json="", own_ids=None, unknown_token_id=0) == replace(
        without.tokenizer, json="", own_ids=None
    )
    texts = ["A bird.", "", "Zwei Vögel singen im Regen."]
    assert with_torch.tokenizer.own_ids is not None
    assert without.tokenizer.own_ids is not None
    assert with_torch.tokenizer.own_ids(texts, 8) == without.tokenizer.own_ids(texts, 8)
    with_torch.hidden_states((6,), "mean")
    reference = with_torch.reference((6,), "mean")
    rows = [(np.array([ids]), np.ones((1, len(ids)), np.int64)) for ids, _ in list(without._rows._place)[:12]]
    ours = np.concatenate([without.reference((6,), "mean").pooled(*row)[0] for row in rows])
    theirs = np.concatenate([reference.pooled(*row)[0] for row in rows])
    agreement = compare(ours, theirs)
    assert agreement.max_difference < 1e-6, str(agreement)


def test_a_plan_counts_no_memory_for_torch(export_without_torch: Export) -> None:
    plan = json.loads(export_without_torch("minilm", "--plan", "--json").stdout)
    assert 300e6 < plan["memory_bytes"] < 500e6  # the process took 308 MB, files that are mapped included


def test_only_the_catalogue_has_recordings(minilm: Checkpoint) -> None:
    assert open_recorded(replace(minilm, entry=None)) is None
    folders = [folder for entry in catalogue() if (folder := recording_folder(entry))]
    assert sorted(folder.name for folder in folders) == ["all-mpnet", "minilm"]
