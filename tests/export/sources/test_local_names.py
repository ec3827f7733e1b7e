"""Test which model a name stands for: a folder here goes before the catalogue and the hub, for exports and bundles."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers

from support.checkpoints import change_config, save_adapter, write_json, write_modules
from support.cli import ok, refused
from support.families import WIDTH
from whiten import Encoder, UsageError
from whiten_export.export import export_bundle
from whiten_export.proof.gate import Case
from whiten_export.recipe import Recipe
from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.resolve import resolve
from whiten_export.sources.sentence_transformers import encode_published
from whiten_runtime.hub import locate_bundle

NAMES = {
    "minilm": "catalogue",
    "sentence-transformers/all-MiniLM-L6-v2": "hub id of the catalogue",
    "someone/model": "hub id",
    "bge-m3": "catalogue, not on this machine",
}
"""Names of models by what they are."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def place(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(source, target))


def of_catalogue(found: Checkpoint) -> bool:
    return found.entry is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_a_model_goes_before_every_other_meaning(
    name: str, here: Path, checkpoint: Callable[[str], Path]
) -> None:
    place(checkpoint("bert"), here / name)
    found = resolve(name)
    assert (found.directory.resolve(), found.hub_id, found.entry) == (here / name, None, None)
    assert len(found.notes) == NAMES[name].count("catalogue")
    assert all(str(here / name) in note for note in found.notes)
    with pytest.raises(UsageError, match="revision 'main'"):
        resolve(f"{name}@main")


@pytest.mark.parametrize(
    "files", [[], ["notes.txt"], ["config.json", "whiten.json"], ["config.json", "modules.json", "whiten.json"]]
)
@pytest.mark.parametrize("name", ["minilm", "sentence-transformers/all-MiniLM-L6-v2"])
def test_a_folder_without_a_model_or_with_a_bundle_does_not(here: Path, name: str, files: list[str]) -> None:
    (here / name).mkdir(parents=True)
    for file in files:
        write_json(here / name / file, {})
    assert of_catalogue(resolve(name))
    assert resolve(name).notes == ()


def test_a_file_goes_before_the_catalogue_if_it_holds_word_vectors(here: Path) -> None:
    (here / "minilm").write_text("notes")
    assert of_catalogue(resolve("minilm"))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_a_bundle_goes_before_the_hub(name: str, here: Path, golden: Path) -> None:
    place(golden / "bundle-v1", here / name)
    assert locate_bundle(name) == Path(name)  # which whiten serve, embed and all others ask
    with Encoder(name) as encoder:
        assert encoder.path.resolve() == here / name


@pytest.fixture
def adapter(here: Path, checkpoint: Callable[[str], Path]) -> Path:
    """Write an adapter whose base lies beside it, by a relative path."""
    place(checkpoint("bert"), here / "both" / "own-base")
    folder = save_adapter(here / "both" / "own-base", here / "both" / "adapter", "AutoModel", None)
    name_base(folder, "own-base")
    return folder


def name_base(adapter: Path, base: str) -> None:
    change_config(adapter, base_model_name_or_path=base)


@pytest.mark.slow
def test_a_relative_base_is_looked_for_here_and_then_beside_the_adapter(adapter: Path, here: Path) -> None:
    found = resolve(str(adapter))
    assert (found.directory, found.merged_into) == (here / "both" / "own-base", "own-base")
    assert [str(found.directory) in note for note in found.notes] == [True]
    place(here / "both" / "own-base", here / "own-base")
    nearer = resolve(str(adapter))
    assert (nearer.directory.resolve(), nearer.notes) == (here / "own-base", ())
    assert (nearer.weights_sha256, nearer.merged_into) == (found.weights_sha256, found.merged_into)


@pytest.mark.slow
def test_a_base_in_the_home_directory_is_found(adapter: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "both"))
    name_base(adapter, "~/own-base")
    assert (resolve(str(adapter)).directory, resolve(str(adapter)).notes) == (here / "both" / "own-base", ())


@pytest.mark.slow
def test_an_embedding_model_whose_base_lies_beside_it_is_compared_from_any_directory(
    adapter: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There sentence-transformers itself does not find the base."""
    transformers.AutoTokenizer.from_pretrained(here / "both" / "own-base").save_pretrained(adapter)
    write_modules(adapter, "Transformer", "Pooling")
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    write_json(adapter / "1_Pooling" / "config.json", pooling)
    write_json(adapter / "sentence_bert_config.json", {"max_seq_length": 20})
    vectors = []
    for folder in (here, here / "both"):
        monkeypatch.chdir(folder)
        found = resolve(str(adapter))
        vectors.append(encode_published(found, [Case((), texts=("the cat sat", "a"))], 20, False, "cpu").vectors[0])
        assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == "own-base"
    np.testing.assert_array_equal(*vectors)
    with Encoder(export_bundle(Recipe(str(adapter)), here / "b").path) as encoder:
        np.testing.assert_allclose(encoder.encode(["the cat sat", "a"]), vectors[0], atol=1e-5)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("模型", "模型"),
        ("a b(1)", "a-b-1"),
        ("\u202egpj", "gpj"),
        ("\u3000", "model"),
    ],
)
def test_the_default_folder_has_the_letters_of_the_models(
    folder: str, name: str, here: Path, checkpoint: Callable[[str], Path]
) -> None:
    place(checkpoint("bert"), here / folder)
    plan = json.loads(ok("export", f"./{folder}", "--layers", 1, "--whitening", "none", "--plan", "--json").stdout)
    assert plan["bundle"] == f"bundles/{name}-l1-raw"


def test_a_name_that_no_file_can_have_is_refused(here: Path, checkpoint: Callable[[str], Path]) -> None:
    """Of a model, of one with a revision, and of the model that an adapter names."""
    long = "a" * 300
    write_json(here / "adapter" / "adapter_config.json", {"base_model_name_or_path": long})
    (here / "adapter" / "adapter_model.safetensors").touch()
    for name in (long, f"./{long}", f"{long}@main", "adapter"):
        assert "File name too long" in refused("export", name, "--plan")
