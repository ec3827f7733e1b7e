"""Test recipes: choices of a wrong type, and choices that exclude each other, are refused before anything is read."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whiten import UsageError, export_bundle, export_vectors
from whiten_export.commands.shared import parse_numbers
from whiten_export.recipe import Recipe, bundle_name
from whiten_export.sources.model import resolve_layers
from whiten_whitening.maps import WhiteningSpec


@pytest.mark.parametrize(
    ("text", "count", "layers"),
    [("1,12", 12, (1, 12)), ("0", 12, (0,)), ("-1", 12, (12,)), ("-13", 12, (0,)), ("12, 1", 12, (1, 12))],
)
def test_parse_and_resolve_layers(text: str, count: int, layers: tuple[int, ...]) -> None:
    assert resolve_layers(parse_numbers("layers", text), count) == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("13", "layer 13"),
        ("-14", "layer -14"),
        ("1,1", "layer 1 "),
        ("12,-1", "layer 12"),
        *((text, "layers") for text in ("", "1,,2", "0_1", "٣", "1\n", "1" * 5000)),
    ],
)
def test_invalid_layers_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_layers(parse_numbers("layers", text), 12)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"dim": 0}, "dim is 0"),
        ({"dim": 2.5}, "dim is 2.5"),
        ({"max_sentences": 0}, "max-sentences is 0"),
        ({"max_length": -1}, "max-length is -1"),
        ({"dim": 8, "whitening": None}, "whitening"),
        ({"corpus": ("a.txt",), "whitening": None}, "corpus"),
        ({"max_sentences": "all", "whitening": None}, "max-sentences"),
        ({"max_sentences": "many"}, "max-sentences is 'many'"),
        ({"column": "text"}, "corpus"),
        *(({"layers": value}, "layers is ") for value in ((), "0,1", 1, ("a",), [True], {"a": 1})),
        ({"pooling": "median"}, "median"),
        ({"pooling": "mean+mean"}, "mean"),
        ({"pooling": "mean+sif"}, "sif"),
        ({"whitening": "ica"}, "ica"),
        ({"whitening": None, "shrinkage": 0.5}, "shrinkage"),
        ({"shrinkage": "lw"}, "lw"),
        ({"shrinkage": 1.5}, "1.5"),
        ({"dev": "pairs.csv", "whitening": "pca"}, "dev"),
        ({"corpus": "file.txt"}, "corpus"),
        ({"corpus": ()}, "corpus"),
        *(({"leave_out": value}, "leave-out is ") for value in ("Dense", None, 5, (1,))),
        *(({"device": value}, "device") for value in ("cuda:", "cuda:４", "tpu", "cpu:1")),
        ({"precision": "int8", "target": "cuda"}, "cuda"),
    ],
)
def test_invalid_choices_are_refused(choices: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe("bert-base", **choices)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (Recipe("m"), "m-l1-l6"),
        (Recipe("m", pooling="cls", whitening=None, normalize=True), "m-l1-l6-cls-raw-norm"),
        (Recipe("m", dim=128), "m-l1-l6-128d"),
        (Recipe("m", whitening="centre", dim=128), "m-l1-l6-centre-128d"),
        (Recipe("m", whitening="pca", precision="int8"), "m-l1-l6-pca-int8"),
    ],
)
def test_bundle_names(recipe: Recipe, name: str) -> None:
    assert bundle_name("m", recipe, (1, 6), bool(recipe.normalize)) == name


@pytest.mark.parametrize(
    ("whitening", "spec"),
    [
        ("centre", WhiteningSpec("pca", 8, 0.0, "oas")),
        ("partial", WhiteningSpec("pca", 8, 0.5, "oas")),
        ("pca-cor", WhiteningSpec("pca-cor", 8, 1.0, "oas")),
        ("auto", None),
    ],
)
def test_names_of_whitenings(whitening: Any, spec: WhiteningSpec | None) -> None:
    assert Recipe("m", whitening=whitening, dim=8, shrinkage="oas").spec == spec


@pytest.mark.parametrize(("max_sentences", "used"), [(None, 24), (9, 9), (50, 50), ("all", 60), (900, 60)])
def test_a_fit_takes_twelve_sentences_a_dimension(tmp_path: Path, max_sentences: Any, used: int) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(60)))
    corpus = Recipe("m", corpus=(str(tmp_path / "a.txt"),), max_sentences=max_sentences).corpus_for(2)
    taken = list(map(int, corpus))
    assert corpus.count() == len(taken) == used
    assert {later - earlier for earlier, later in pairwise(taken)} <= {60 // used, -(-60 // used)}


X = Path("x.npy")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((partial(Recipe, value), "^model is ") for value in (None, 3, "")),
        *((partial(export_bundle, value), "^recipe is ") for value in ("m", None)),
        *((partial(export_vectors, value), "^file is ") for value in (None, "", Recipe("m"))),
        (lambda: export_vectors(X, spec="pca"), "^spec is "),
        (lambda: export_vectors(X, 3), "^out is "),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize("layers", [[0, 1], np.array([0, 1]), range(2), (np.int64(0), 1)], ids=repr)
def test_layers_of_any_kind_are_a_tuple(layers: Any) -> None:
    found = Recipe("minilm", layers=layers).layers
    assert found == (0, 1)
    assert [type(layer) for layer in found] == [int, int]


def test_paths_may_be_texts(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32))
    made = export_vectors(str(tmp_path / "x.npy"), str(tmp_path / "out"))
    assert made.path == tmp_path / "out"
