"""Arguments of a wrong type are refused in one line before anything is read."""

from pathlib import Path

import numpy as np
import pytest

from whiten import Recipe, SourceChoice, UsageError, VectorRecipe, export_bundle, export_vectors


@pytest.mark.parametrize("value", ["minilm", None, 3, SourceChoice("minilm")], ids=["str", "None", "int", "part"])
def test_no_recipe(value: object) -> None:
    with pytest.raises(UsageError, match=r"^recipe is .*; wanted a Recipe, such as Recipe\.of\('minilm'"):
        export_bundle(value)
    with pytest.raises(UsageError, match=r"^recipe is .*; wanted a VectorRecipe, such as VectorRecipe\('vectors"):
        export_vectors(value)


def test_the_recipe_of_the_other_function(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^recipe is VectorRecipe"):
        export_bundle(VectorRecipe(tmp_path / "x.npy"))
    with pytest.raises(UsageError, match="^recipe is Recipe"):
        export_vectors(Recipe.of("minilm"))


@pytest.mark.parametrize("layers", ["0,1", "1", b"1", 1, 1.5, True, ("a",), [0.5], [True], {"a": 1}], ids=repr)
def test_what_is_no_list_of_layers(layers: object) -> None:
    with pytest.raises(UsageError, match=r"^layers is .*; wanted whole numbers in a tuple, such as \(0, 1\)$"):
        Recipe.of("minilm", layers=layers)


@pytest.mark.parametrize("layers", [(0, 1), [0, 1], np.array([0, 1]), range(2), (np.int64(0), 1)], ids=repr)
def test_layers_of_any_kind_are_a_tuple(layers: object) -> None:
    found = SourceChoice("minilm", layers=layers).layers
    assert found == (0, 1)
    assert [type(layer) for layer in found] == [int, int]


@pytest.mark.parametrize("model", [None, 3, ""], ids=repr)
def test_what_is_no_model(model: object) -> None:
    with pytest.raises(UsageError, match=r"^model is .*; wanted a path"):
        Recipe.of(model)


@pytest.mark.parametrize("value", [None, 3, ""], ids=repr)
def test_what_is_no_file_of_vectors(value: object) -> None:
    with pytest.raises(UsageError, match=r"^file is .*; wanted a path"):
        VectorRecipe(value)


def test_a_whitening_by_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^spec is str 'pca'; wanted a WhiteningSpec"):
        VectorRecipe(tmp_path / "x.npy", spec="pca")


def test_paths_may_be_texts(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32))
    made = export_vectors(VectorRecipe(str(file)), str(tmp_path / "out"))
    assert made.path == tmp_path / "out"
    with pytest.raises(UsageError, match=r"^out is int 3; wanted a path"):
        export_vectors(VectorRecipe(file), 3)
