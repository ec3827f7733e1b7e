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
from whiten import Encoder, UsageError, WhitenError
from whiten_export.export import export_bundle
from whiten_export.proof.gate import Case
from whiten_export.recipe import Recipe
from whiten_export.sources.checkpoint import Checkpoint
from whiten_export.sources.resolve import resolve
from whiten_export.sources.sentence_transformers import encode_published
from whiten_models.catalogue import near_matches
from whiten_runtime.hub import locate_bundle

NAMES = {
    "minilm": "catalogue",
    "all-MiniLM-L6-v2": "alias of the catalogue",
    "sentence-transformers/all-MiniLM-L6-v2": "hub id of the catalogue",
    "MINILM": "catalogue, in other letters",
    "someone/model": "hub id",
    "model": "no model",
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
    assert all(f"'{name}' is {here / name} here, not the catalogue's" in note for note in found.notes)
    with pytest.raises(UsageError, match=f"revision 'main' is for the hub, but '{name}' is a local path"):
        resolve(f"{name}@main")


@pytest.mark.parametrize("file", ["modules.json", "adapter_config.json", "config.json"])
def test_a_folder_of_any_kind_of_model_counts_even_if_it_is_not_whole(here: Path, file: str) -> None:
    write_json(here / "minilm" / file, {})
    with pytest.raises(WhitenError, match="minilm"):
        resolve("minilm")


@pytest.mark.parametrize(
    "files", [[], ["notes.txt"], ["config.json", "whiten.json"], ["config.json", "modules.json", "whiten.json"]]
)
@pytest.mark.parametrize("name", ["minilm", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_a_folder_without_a_model_or_with_a_bundle_does_not(here: Path, name: str, files: list[str]) -> None:
    (here / name).mkdir(parents=True)
    for file in files:
        write_json(here / name / file, {})
    assert of_catalogue(resolve(name))
    assert resolve(name).notes == ()


def test_a_file_goes_before_the_catalogue_if_it_holds_word_vectors(here: Path) -> None:
    (here / "minilm").write_text("notes")
    assert of_catalogue(resolve("minilm"))


def test_an_export_says_that_it_took_the_folder(here: Path, checkpoint: Callable[[str], Path]) -> None:
    place(checkpoint("bert"), here / "bert-base-uncased")
    result = ok("export", "bert-base-uncased", "--layers", "1", "--whitening", "none", "--out", here / "b", "-q")
    assert (
        result.stderr
        == f"warning: 'bert-base-uncased' is {here / 'bert-base-uncased'} here, not the catalogue's bert-base\n"
    )
    assert "bert-base-uncased (local directory)" in ok("info", here / "b").stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_a_bundle_goes_before_the_hub(name: str, here: Path, golden: Path) -> None:
    place(golden / "bundle-v1", here / name)
    assert locate_bundle(name) == Path(name)  # which whiten serve, embed and all others ask
    with Encoder(name) as encoder:
        assert encoder.path.resolve() == here / name


@pytest.mark.parametrize(
    "name", [*(f"{at}/bert-bose" for at in (".", "..", "/home", "~", "a/b")), "bert-bose.txt", "~x/bert"]
)
def test_names_are_not_guessed_for_paths(name: str, here: Path) -> None:
    with pytest.raises(UsageError, match="is not in the catalogue, not a directory and not a hub id") as caught:
        resolve(name)
    assert "did you mean" not in str(caught.value)
    assert near_matches("bert-bose")
    with pytest.raises(UsageError, match="did you mean bert-base"):
        resolve("bert-bose")


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
    assert found.notes == (f"the model 'own-base' that adapter '{adapter}' belongs to is {found.directory}, beside it",)
    place(here / "both" / "own-base", here / "own-base")
    nearer = resolve(str(adapter))
    assert (nearer.directory.resolve(), nearer.notes) == (here / "own-base", ())
    assert (nearer.weights_sha256, nearer.merged_into) == (found.weights_sha256, found.merged_into)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "reason"),
    [
        *(
            (base, "is no directory here or beside the adapter, and no hub id")
            for base in ("own-bose", "/home/someone/bert-base", "./own-bose", "models/a/bert-base")
        ),
        ("models/bert-base", "cannot be had: 'models/bert-base' is not in the local cache and HF_HUB_OFFLINE is set"),
    ],
)
def test_a_base_that_is_gone_is_told_with_the_key_to_correct(adapter: Path, base: str, reason: str) -> None:
    name_base(adapter, base)
    with pytest.raises(WhitenError) as caught:
        resolve(str(adapter))
    assert f"{adapter}/adapter_config.json: base_model_name_or_path is '{base}', which {reason}" in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.slow
def test_a_base_of_the_catalogue_is_not_looked_for_beside_the_adapter(adapter: Path, here: Path) -> None:
    place(here / "both" / "own-base", here / "both" / "minilm")
    name_base(adapter, "minilm")
    assert resolve(str(adapter)).directory != here / "both" / "minilm"


@pytest.mark.slow
def test_a_base_in_the_home_directory_is_found(adapter: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "both"))
    name_base(adapter, "~/own-base")
    assert (resolve(str(adapter)).directory, resolve(str(adapter)).notes) == (here / "both" / "own-base", ())


@pytest.mark.slow
@pytest.mark.parametrize("base", [7, ["a"], "", None])
def test_a_base_that_is_no_name_is_refused(adapter: Path, base: object) -> None:
    name_base(adapter, base)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no base_model_name_or_path in it"):
        resolve(str(adapter))


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
        ("модель 2", "модель-2"),
        ("हिन्दी", "हिन्दी"),
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
