"""Test what is said about Python code that comes with a checkpoint and is not run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers

from support.checkpoints import change_config, copy_modules_to, save_adapter, write_json
from support.cli import ok, refused
from support.families import WIDENED
from support.hub import Hub, commit_of
from whiten import Encoder
from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.network import load_config, load_tokenizer, network_class
from whiten_export.sources.own_code import ignored_code, other_version
from whiten_export.sources.pytorch import PyTorchModel
from whiten_export.sources.resolve import resolve
from whiten_models.catalogue import find

OWN = """
from transformers import BertModel
class OwnModel(BertModel):
    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.hidden_states = tuple(state.flip(-1) for state in output.hidden_states)
        output.last_hidden_state = output.hidden_states[-1]
        return output
"""
TO_NONE = ("--layers", "2", "--whitening", "none")


def add(folder: Path, name: str, auto_map: object) -> None:
    path = folder / name
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    write_json(path, content | {"auto_map": auto_map})


@pytest.fixture
def folder(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    copied = Path(shutil.copytree(checkpoint("bert", WIDENED), tmp_path / "tiny"))
    (copied / "modeling_own.py").write_text(OWN)
    return copied


def warnings_of(*arguments: object) -> list[str]:
    return [line for line in ok("export", *arguments, "-q").stderr.splitlines() if line.startswith("warning: ")]


@pytest.mark.slow
def test_a_network_in_place_of_its_own_code_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("export", folder, *TO_NONE, "--out", tmp_path / "stock")
    assert "ignored_code" not in (tmp_path / "stock" / "whiten.json").read_text("utf-8")
    add(folder, "config.json", {"AutoModel": "modeling_own.OwnModel"})
    (line,) = warnings_of(folder, *TO_NONE, "--out", tmp_path / "without")
    assert "tiny has Python code of its own that was not run: modeling_own.py" in line
    assert "--trust-remote-code" in line
    assert "own code    not run: modeling_own.py" in ok("info", tmp_path / "without").stdout
    assert "modeling_own.py" in (tmp_path / "without" / "README.md").read_text("utf-8")
    copy_modules_to(tmp_path / "modules", monkeypatch)
    assert warnings_of(folder, *TO_NONE, "--trust-remote-code", "--out", tmp_path / "with") == []
    assert "own code    run: modeling_own.py" in ok("info", tmp_path / "with").stdout
    assert "run: `modeling_own.py`" in (tmp_path / "with" / "README.md").read_text("utf-8")
    vectors = []
    for name in ("stock", "without", "with"):
        with Encoder(tmp_path / name) as encoder:
            vectors.append(encoder.encode(["the cat"]))
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_allclose(vectors[0], vectors[2][:, ::-1], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "auto_map", "files"),
    [
        ("config.json", {"AutoConfig": "configuration_own.OwnConfig"}, ("configuration_own.py",)),
        ("config.json", {"AutoModel": "some/repository--own.Model"}, ("some/repository--own.py",)),
        ("config.json", {"AutoConfig": "own.Config", "AutoModel": "own.Model"}, ("own.py",)),
        ("config.json", {"AutoModelForSequenceClassification": "own.Classifier"}, ()),
        ("config.json", {"AutoTokenizer": ["own.Tokenizer", None]}, ()),  # transformers looks in the other file
        ("config.json", {}, ()),
        ("tokenizer_config.json", {"AutoTokenizer": ["slow.Tokenizer", None]}, ("slow.py",)),
        ("tokenizer_config.json", {"AutoTokenizer": ["slow.Tokenizer", "fast.Tokenizer"]}, ("fast.py",)),
        ("tokenizer_config.json", ["slow.Tokenizer", None], ("slow.py",)),
        ("tokenizer_config.json", {"AutoProcessor": "own.Processor"}, ()),
    ],
)
def test_code_that_a_vector_depends_on_is_named(folder: Path, name: str, auto_map: object, files: object) -> None:
    add(folder, name, auto_map)
    found = resolve(str(folder))
    assert ignored_code(found) == files
    assert ignored_code(found, ("AutoConfig", "AutoModel", "AutoTokenizer")) == ()
    record = PyTorchModel(found, trust_remote_code=False, device="cpu").record
    assert (record.ignored_code or ()) == files
    known = replace(found, entry=find("bert-base"))
    assert ignored_code(known) == ()


def test_a_tokenizer_in_place_of_own_code_gives_the_ids_of_transformers_class(folder: Path) -> None:
    """Which is why it is told: the code may give others."""
    stock = load_tokenizer(resolve(str(folder)), trust_remote_code=False)
    add(folder, "tokenizer_config.json", {"AutoTokenizer": ["own.Tokenizer", None]})
    found = load_tokenizer(resolve(str(folder)), trust_remote_code=False)
    assert found("the cat")["input_ids"] == stock("the cat")["input_ids"]


def test_code_of_a_network_that_is_loaded_by_another_class_is_not_run_even_if_it_may(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("t5"), tmp_path / "tiny"))
    add(folder, "config.json", {"AutoModel": "own.Model"})
    found = resolve(str(folder))
    assert network_class(found, load_config(found, False)).__name__ == "T5EncoderModel"
    assert PyTorchModel(found, trust_remote_code=True, device="cpu").record.ignored_code == ("own.py",)


@pytest.mark.slow
def test_code_of_the_model_that_an_adapter_changes_is_named(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(folder, tmp_path / "adapter", "AutoModel", None)
    change_config(adapter, base_model_name_or_path=str(folder))
    add(folder, "config.json", {"AutoModel": "own.Model"})
    assert ignored_code(resolve(str(adapter))) == ("own.py",)


def test_only_the_tokenizer_of_an_onnx_encoder_could_have_code(tmp_path: Path) -> None:
    found = Checkpoint("m", "m", "onnx", tmp_path, ())
    add(tmp_path, "config.json", {"AutoModel": "own.Model"})
    assert ignored_code(found) == ()
    add(tmp_path, "tokenizer_config.json", {"AutoTokenizer": [None, "own.Tokenizer"]})
    assert ignored_code(found) == ("own.py",)


OTHER = "some/implementation"


@pytest.fixture
def of_another(checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose code for the network is in another repository, as that of nomic, GTE and jina v2 is."""
    folder = Path(shutil.copytree(checkpoint("bert", WIDENED), tmp_path / "tiny"))
    add(folder, "config.json", {"AutoModel": f"{OTHER}--modeling_own.OwnModel"})
    copy_modules_to(tmp_path / "modules", monkeypatch)
    return folder


def serve_code(hub: Hub) -> str:
    """Put the code into the hub, in two files, and return its commit."""
    code = OWN.replace("from transformers import BertModel", "from .base import BertModel")
    hub.repositories[OTHER] = {
        "modeling_own.py": code.encode(),
        "base.py": b"from transformers import BertModel",
        "model.safetensors": b"not wanted",
    }
    return commit_of(hub.repositories[OTHER])


@pytest.mark.slow
def test_code_of_another_repository_is_downloaded_run_and_recorded(hub: Hub, of_another: Path, tmp_path: Path) -> None:
    commit = serve_code(hub)
    ok("export", of_another, *TO_NONE, "--trust-remote-code", "--out", tmp_path / "with")
    assert sorted(hub.fetched) == ["base.py", "modeling_own.py"]
    files = f"{OTHER}@{commit}/modeling_own.py"
    assert f"own code    run: {files}" in ok("info", tmp_path / "with").stdout
    ok("export", of_another, *TO_NONE, "--out", tmp_path / "without")
    assert "own code    not run: some/implementation--modeling_own.py" in ok("info", tmp_path / "without").stdout
    with Encoder(tmp_path / "with") as ran, Encoder(tmp_path / "without") as stock:
        np.testing.assert_allclose(ran.encode(["the cat"]), stock.encode(["the cat"])[:, ::-1], atol=1e-5)


def test_the_commit_of_another_repository_is_that_of_today(hub: Hub, of_another: Path) -> None:
    commit = serve_code(hub)
    assert resolve(str(of_another), remote_code=True).code == {OTHER: commit}
    assert resolve(str(of_another)).code == {}
    hub.repositories[OTHER] |= {"more.py": b""}
    assert (
        resolve(str(of_another), remote_code=True).code
        == {OTHER: commit_of(hub.repositories[OTHER])}
        != {OTHER: commit}
    )


def test_code_of_another_repository_that_cannot_be_had_is_named(of_another: Path, snapshot: object) -> None:
    error = refused("export", of_another, *TO_NONE, "--trust-remote-code", code=1)
    assert "the code of" in error
    assert f"is in the repository '{OTHER}', which is not in the local cache and HF_HUB_OFFLINE is set" in error


def test_own_code_that_is_not_in_the_folder_is_no_way(folder: Path) -> None:
    """To allow it would not help: the files were left out of a copy."""
    content = json.loads((folder / "config.json").read_text())
    reference = {"AutoConfig": "configuration_lost.LostConfig", "AutoModel": "modeling_lost.LostModel"}
    write_json(folder / "config.json", content | {"model_type": "new", "auto_map": reference})
    error = refused("export", folder, *TO_NONE)
    assert "not in its folder (configuration_lost.py, modeling_lost.py)" in error
    assert "--trust-remote-code" not in error


@pytest.mark.parametrize("changes", [{"model_type": "new"}, {"num_hidden_layers": 3}, {"num_hidden_layers": 1}])
def test_a_model_that_needs_its_code_names_the_repository_and_the_flag(of_another: Path, changes: object) -> None:
    """Its type is unknown; weights are missing; weights are left over."""
    content = json.loads((of_another / "config.json").read_text())
    write_json(of_another / "config.json", content | changes)  # type: ignore[operator]
    error = refused(
        "export", of_another, "--layers", "1", "--whitening", "none", code=2 if "model_type" in changes else 1
    )  # type: ignore[operator]
    assert "comes with Python code of its own (in the repository some/implementation)" in error
    assert "allow it with --trust-remote-code" in error


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        # as the code of gte-Qwen2 and stella_en_1.5B_v5
        ("def forward", "def __init__(self, config):\n        config.rope_theta\n    def forward", "cannot load"),
        # as that of jina v2 and CodeSage
        ("super().forward", "self.get_former_mask()\n        super().forward", "does not run on token ids"),
    ],
)
def test_code_for_another_version_of_transformers_names_both(
    folder: Path, old: str, new: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_modules_to(tmp_path / "modules", monkeypatch)
    (folder / "modeling_own.py").write_text(OWN.replace(old, new).replace("output = self", "self"))
    add(folder, "config.json", {"AutoModel": "modeling_own.OwnModel"})
    for version, said in (("4.42.3", True), (transformers.__version__, False)):
        write_json(
            folder / "config.json",
            json.loads((folder / "config.json").read_text("utf-8")) | {"transformers_version": version},
        )
        error = refused("export", folder, *TO_NONE, "--trust-remote-code", code=1)
        assert wanted in error
        assert (f"may be for transformers {version}, which wrote config.json" in error) is said


@pytest.mark.parametrize(
    ("stated", "older"),
    [("4.57.1", True), ("3.0", True), ("4.50.0.dev0", True), (4.57, True)]
    + [(stated, False) for stated in ("5.0.0", "10.0", "10.1.dev0", "main", "", None, 5, ["4"])],
)
def test_versions_of_transformers_are_compared_as_numbers(stated: object, older: bool) -> None:
    assert bool(other_version(stated)) is older


def test_code_that_loads_its_weights_itself_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of nomic, whose mixture of experts chooses what it computes besides."""
    copy_modules_to(tmp_path / "modules", monkeypatch)
    own = "    @classmethod\n    def from_pretrained(cls, path, config=None, **options):\n        return cls(config)\n"
    (folder / "modeling_own.py").write_text(OWN + own)
    add(folder, "config.json", {"AutoModel": "modeling_own.OwnModel"})
    error = refused("export", folder, *TO_NONE, "--trust-remote-code", code=1)
    assert "its own code (OwnModel) loads weights in a way of its own, and does not say which are missing" in error
    assert "leave --trust-remote-code out where transformers has the architecture (bert)" in error
