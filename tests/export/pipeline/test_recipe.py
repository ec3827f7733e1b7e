import pytest

from whiten import UsageError
from whiten_export.pipeline.recipe import GraphChoice, Recipe, WhiteningChoice, bundle_name
from whiten_export.sources.choice import SourceChoice, parse_layers, resolve_layers


@pytest.mark.parametrize(
    ("text", "count", "layers"),
    [("1,12", 12, (1, 12)), ("0", 12, (0,)), ("-1", 12, (12,)), ("-13", 12, (0,)), ("12, 1", 12, (1, 12))],
)
def test_parse_and_resolve_layers(text: str, count: int, layers: tuple[int, ...]) -> None:
    assert resolve_layers(parse_layers(text), count) == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("13", "layer 13 does not exist: the model has layers 0 .embeddings. to 12, or -1 to -13"),
        ("-14", "layer -14 does not exist"),
        ("1,1", "layer 1 is given twice"),
        ("12,-1", "layer 12 is given twice"),
        ("one", "wanted whole numbers"),
        ("", "wanted whole numbers"),
        ("1,,2", "wanted whole numbers"),
    ],
)
def test_invalid_layers_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_layers(parse_layers(text), 12)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"dim": 0}, "dim is 0"),
        ({"max_sentences": 0}, "max-sentences is 0"),
        ({"max_length": -1}, "max-length is -1"),
        ({"dim": 8, "whitening": None}, "without whitening"),
        ({"corpus": ("a.txt",), "whitening": None}, "corpus is for fitting"),
        ({"max_sentences": 9, "whitening": None}, "max-sentences is for fitting"),
        ({"all_sentences": True, "whitening": None}, "all-sentences is for fitting"),
        ({"all_sentences": True, "max_sentences": 9}, "exclude each other"),
        ({"column": "text"}, "without a corpus file"),
        ({"layers": ()}, "layers is empty"),
        ({"pooling": "median"}, "wanted mean, cls, last, max"),
        ({"pooling": "mean+mean"}, "wanted different modes"),
        ({"pooling": "mean+sif"}, "sif alone"),
        ({"whitening": "ica"}, "wanted pca or zca or cholesky or zca-cor or pca-cor or auto or default or None"),
        ({"whitening": "zca", "dim": 8}, "its columns are not ordered by variance"),
        ({"whitening": "auto", "beta": 0.5}, "auto chooses it"),
        ({"whitening": None, "beta": 0.5}, "there is no whitening"),
        ({"whitening": None, "outputs": "both"}, "there is no whitening"),
        ({"beta": 1.5}, "wanted a number from 0"),
        ({"beta": float("nan")}, "wanted a number from 0"),
        ({"shrinkage": "lw"}, "wanted none, ledoit-wolf, oas, or a number"),
        ({"shrinkage": 1.5}, "wanted none, ledoit-wolf, oas, or a number"),
        ({"dev": "pairs.csv", "whitening": "pca"}, "leave the method out"),
        ({"outputs": "all"}, "wanted whitened or both"),
        ({"dim": "8"}, "dim is '8'"),
        ({"dim": 2.5}, "dim is 2.5"),
        ({"corpus": "file.txt"}, "wanted a tuple of files"),
        ({"device": "cuda:"}, "wanted cpu, cuda or cuda:N"),
        ({"device": "openvino"}, "wanted cpu, cuda or cuda:N"),
        ({"device": "tpu"}, "wanted cpu, cuda or cuda:N"),
        ({"device": "cpu:1"}, "wanted cpu, cuda or cuda:N"),
        ({"corpus": ()}, "wanted a tuple of files"),
    ],
)
def test_invalid_choices_are_refused(choices: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.of("bert-base", **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (Recipe.of("m"), "m-l1-l6"),
        (Recipe.of("m", pooling="cls", whitening=None, normalize=True), "m-l1-l6-cls-raw-norm"),
        (Recipe.of("m", dim=128), "m-l1-l6-128d"),
    ],
)
def test_bundle_names(recipe: Recipe, name: str) -> None:
    assert bundle_name("m", recipe, (1, 6), bool(recipe.graph.normalize)) == name


def test_parts_and_flat_choices_are_told_apart() -> None:
    assert Recipe.of("m", layers=(1, 2), precision="int8", dim=8) == Recipe(
        SourceChoice("m", layers=(1, 2)), WhiteningChoice(dim=8), GraphChoice(precision="int8")
    )
    with pytest.raises(UsageError, match="a part of the recipe is 'bert-base'; wanted a SourceChoice"):
        Recipe("bert-base")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"a part of the recipe is \(1, 12\); wanted a WhiteningChoice"):
        Recipe(SourceChoice("m"), (1, 12))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a recipe has no choice 'layer'"):
        Recipe.of("m", layer=(1,))
    with pytest.raises(TypeError, match="its name is 'whitening'"):
        Recipe.of("m", whitening="zca", method="pca")
