"""Test what names a network besides its weights: settings, code that ran; and that equal names mean equal vectors."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.checkpoints import copy_modules_to, rotary, save_checkpoint, write_json
from support.cli import ok, refused
from support.families import DECODERS
from whiten import Encoder
from whiten_evaluation.sweep.layers import embed_layers, open_graph
from whiten_export.sources.open_model import open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.inference.options import Prompts
from whiten_runtime.ort.session import BFLOAT16, SessionOptions
from whiten_runtime.reporter import Reporter

OWN = """
from transformers import BertModel
from .helper import turned
class OwnModel(BertModel):
    def forward(self, *args, **options):
        return turned(super().forward(*args, **options))
class OtherModel(BertModel):
    pass
"""
HELPER = """
def turned(output):
    output.hidden_states = tuple(state.flip(-1) for state in output.hidden_states)
    output.last_hidden_state = output.hidden_states[-1]
    return output
"""
LAYERS = ("--layers", "1,2", "--whitening", "none")


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_modules_to(tmp_path / "modules", monkeypatch)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("saved")

    def get(family: str) -> Path:
        path = folder / family
        return path if path.is_dir() else save_checkpoint(DECODERS.get(family, family), path, num_hidden_layers=2)

    return get


def changed(base: Path, folder: Path, **changes: Any) -> Path:
    """Copy a checkpoint, and change settings of its config.json; None takes one away."""
    copied = Path(shutil.copytree(base, folder))
    content = json.loads((copied / "config.json").read_text("utf-8")) | changes
    kept = {name: value for name, value in content.items() if name not in changes or value is not None}
    write_json(copied / "config.json", kept)
    return copied


def network(folder: Path, trust_remote_code: bool = False) -> object:
    return open_model(resolve(str(folder), trust_remote_code), trust_remote_code).record.network_sha256


def weights(folder: Path) -> str:
    return resolve(str(folder)).weights_sha256


def with_code(base: Path, folder: Path, name: str = "OwnModel") -> Path:
    copied = changed(base, folder, auto_map={"AutoModel": f"modeling_own.{name}"})
    (copied / "modeling_own.py").write_text(OWN)
    (copied / "helper.py").write_text(HELPER)
    return copied


@pytest.mark.parametrize(
    ("family", "change", "same"),
    [
        ("qwen3", rotary(rope_theta=10.0, rope_type="default"), False),
        ("qwen3", rotary(rope_theta=10000.0, rope_type="linear", factor=2.0), False),
        ("qwen2", {"is_causal": False}, False),
        ("mistral", {"sliding_window": 4}, False),
        ("bert", {"hidden_act": "relu"}, False),
        ("roberta", {"pad_token_id": 3}, False),
        ("qwen3", rotary(rope_type="default", rope_theta=10000), True),
        ("qwen3", {"_name_or_path": "./elsewhere", "transformers_version": "4.57.1", "architectures": ["A"]}, True),
        ("qwen3", {"dtype": "bfloat16", "use_cache": False, "bos_token_id": 7, "pad_token_id": 9}, True),
        ("bert", {"torch_dtype": "float16", "id2label": {"0": "yes"}, "pad_token_id": None}, True),
    ],
    ids=str,
)
def test_a_setting_counts_where_it_decides_the_vectors(
    saved: Callable[[str], Path], tmp_path: Path, family: str, change: dict[str, Any], same: bool
) -> None:
    other = changed(saved(family), tmp_path / "other", **change)
    content = json.loads((other / "config.json").read_text("utf-8"))
    write_json(other / "config.json", dict(reversed(content.items())))  # whose order never counts
    assert weights(other) == weights(saved(family))
    assert (network(other) == network(saved(family))) == same


def test_code_counts_where_it_runs_and_with_what_it_imports(saved: Callable[[str], Path], tmp_path: Path) -> None:
    base = saved("bert")
    folder = with_code(base, tmp_path / "own")
    assert network(folder) == network(base)  # transformers' class in its place
    ran = network(folder, trust_remote_code=True)
    assert network(base, trust_remote_code=True) == network(base)
    (folder / "train_script.py").write_text("raise SystemExit")
    assert network(folder, trust_remote_code=True) == ran
    named = {network(base), ran, network(with_code(base, tmp_path / "class", "OtherModel"), trust_remote_code=True)}
    (folder / "helper.py").write_text(HELPER.replace("flip(-1)", "flip(1)"))
    named.add(network(folder, trust_remote_code=True))
    (folder / "modeling_own.py").write_text(OWN + "\n")
    named.add(network(folder, trust_remote_code=True))
    assert len(named) == 5


@pytest.mark.slow
def test_bundles_of_two_networks_with_the_same_weights_are_not_mixed(
    saved: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    base = saved("qwen3")
    rope = changed(base, tmp_path / "rope", rope_parameters={"rope_theta": 10.0, "rope_type": "default"})
    for folder, name in ((base, "base"), (rope, "other")):
        ok("export", folder, *LAYERS, "--out", tmp_path / name)
        ok("fit", tmp_path / name, "--corpus", corpus_file, "--out", tmp_path / f"{name}.stats")
    with Encoder(tmp_path / "base") as one, Encoder(tmp_path / "other") as two:
        assert one.space != two.space
    fitted = ("--stats", tmp_path / "base.stats", "--whitening", "pca")
    ok("refit", tmp_path / "base", *fitted, "--out", tmp_path / "white")
    mixed = ("--stats", tmp_path / "other.stats", "--out", tmp_path / "mixed")
    aligned = ("--corpus", corpus_file, "--whitening", "pca", "--align-to", tmp_path / "white")
    aligned = (*aligned, "--out", tmp_path / "aligned")
    for arguments in (
        ("refit", tmp_path / "base", *mixed),
        ("refit", tmp_path / "base", *fitted, *mixed),
        ("refit", tmp_path / "other", *aligned),
        ("export", rope, "--layers", "1,2", *aligned),
    ):
        assert re.search("network_sha256 '[0-9a-f]{12}' and '[0-9a-f]{12}'", refused(*arguments, code=2))
    assert not (tmp_path / "mixed").exists()
    assert not (tmp_path / "aligned").exists()


@pytest.mark.slow
def test_the_sweeps_cache_keeps_networks_and_devices_apart(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = with_code(saved("bert"), tmp_path / "own")
    options = SessionOptions(threads=1)

    def vectors(trust_remote_code: bool) -> np.ndarray:
        model = open_model(resolve(str(folder), trust_remote_code), trust_remote_code)
        of = (model, "own", (1, 2), "mean", 16, Prompts(), tmp_path / "cache", options, Reporter())
        return embed_layers(open_graph(*of), ["the cat", "a dog"], options, Reporter()).table

    stock, own = vectors(False), vectors(True)
    np.testing.assert_allclose(stock[..., ::-1], own, atol=1e-5)
    assert not np.allclose(stock, own)
    graph = open_graph(
        open_model(resolve(str(folder))), "own", (1, 2), "mean", 16, Prompts(), tmp_path / "cache", options, Reporter()
    )
    before = set(graph.folder.parent.iterdir())
    tuned = SessionOptions((("CPUExecutionProvider", {BFLOAT16: "0"}),), threads=1)
    embed_layers(graph, ["the cat", "a dog"], tuned, Reporter())
    assert len(set(graph.folder.parent.iterdir()) - before) == 1
