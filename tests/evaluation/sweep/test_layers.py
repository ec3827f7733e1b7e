"""Test the graph and the file of all layers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.corpus import sentences
from support.families import WIDTH
from whiten import ParityError
from whiten_evaluation.sweep.layers import LayerGraph, check_layers, embed_layers, open_graph, write_layers
from whiten_evaluation.sweep.scoring import scored_combinations
from whiten_evaluation.sweep.sweep import corpus_sentences
from whiten_export.sources.model import TokenModel
from whiten_export.sources.open_model import open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.files.corpus import builtin_sentences
from whiten_runtime.inference.options import Prompts
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

pytestmark = pytest.mark.slow

OPTIONS = SessionOptions(threads=2)
NO_PROMPTS = Prompts()


def test_combinations_are_bounded() -> None:
    assert len(scored_combinations(range(7))) == 127  # all of MiniLM's
    assert max(map(len, scored_combinations(range(13)))) == 3  # BERT-base
    assert max(map(len, scored_combinations(range(80)))) == 2  # pairs, however many there are


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> TokenModel:
    directory = str(checkpoint("bert"))
    return open_model(resolve(directory))


def layer_graph(folder: Path, model: TokenModel) -> LayerGraph:
    pad = model.tokenizer.pad_token_id
    return LayerGraph(folder, model.layers, "mean", WIDTH, pad, 40, "right", NO_PROMPTS)


@pytest.fixture
def graph(model: TokenModel, tmp_path: Path) -> LayerGraph:
    (tmp_path / "graph").mkdir()
    made = layer_graph(tmp_path / "graph", model)
    write_layers(model, made)
    return made


def test_every_layer_equals_the_reference_and_swapped_layers_fail(model: TokenModel, graph: LayerGraph) -> None:
    check_layers(model, graph, OPTIONS)
    swapped = replace(graph, layers=(0, 2, 1, 3, 4))
    with pytest.raises(ParityError, match="layer 2"):
        check_layers(model, swapped, OPTIONS)


LONG = "the fox runs over the field and a dog barks at it " * 9


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_are_embedded_as_an_export_embeds_them(
    model: TokenModel, graph: LayerGraph, side: Side, pooled: bool
) -> None:
    """With the model's default prompt, and cut from the side from which its tokenizer cuts."""
    prompted = replace(graph, truncation_side=side, prompts=Prompts({"query": "a dog and a cat: "}, "query", pooled))
    write_layers(model, prompted)
    check_layers(model, prompted, OPTIONS)
    vectors = embed_layers(prompted, ("x", LONG), OPTIONS, Reporter())
    with graph.embedder(OPTIONS) as plain:
        rows = plain.tokenizer.tokenize(["a dog and a cat: x", "a dog and a cat: " + LONG])
        left_out = 0 if pooled else plain.tokenizer.prompt_tokens("a dog and a cat: ")
    ids = [row if len(row) <= 40 else [row[0], *row[-39:]] if side == "left" else [*row[:39], row[-1]] for row in rows]
    reference = model.reference(model.layers, "mean")
    for index, row in enumerate(ids):
        mask = np.ones((1, len(row)), np.int64)
        mask[:, :left_out] = 2
        wanted = reference.pooled(np.asarray([row]), mask)[:, 0]
        table = [vectors.mean((layer,), ("x", LONG))[index] for layer in model.layers]
        np.testing.assert_allclose(table, wanted, atol=1e-5)


def test_side_and_prompt_get_a_cache_of_their_own(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    directory, folders = str(checkpoint("bert")), set()
    model = open_model(resolve(directory))
    sides: tuple[Side, ...] = ("right", "left", "right")
    for side, prompts in zip(sides, (NO_PROMPTS, NO_PROMPTS, Prompts({"q": "a: "}, "q")), strict=True):
        model.tokenizer = replace(model.tokenizer, truncation_side=side)
        graph = open_graph(model, "m", (0, 1), "mean", 40, prompts, tmp_path, OPTIONS, Reporter())
        assert (graph.truncation_side, graph.prompts) == (side, prompts)
        folders.add(graph.folder)
    assert len(folders) == 3


def test_vectors_are_kept_whole_or_not_at_all(
    graph: LayerGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tuple(sentences(40))

    class Stopping(Reporter):
        def bar(self, unit: str, total: int | None):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_layers(graph, texts, OPTIONS, Stopping())
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
    found = embed_layers(graph, texts, OPTIONS, Reporter())
    with graph.embedder(OPTIONS) as embedder:
        want = graph.split(embedder.embed(texts[:3]))
    np.testing.assert_allclose(found.mean((1, 4), texts[:3]), want[:, [1, 4]].mean(axis=1), atol=1e-5)
    monkeypatch.setattr(LayerGraph, "embedder", pytest.fail)
    assert embed_layers(graph, texts[::-1], OPTIONS, Reporter()).table.shape == (len(texts), 5, WIDTH)


def test_sentences_of_the_corpus_are_evenly_spaced_and_distinct() -> None:
    every = list(dict.fromkeys(sentence for _, sentence in builtin_sentences()))
    texts = corpus_sentences(768)
    assert len(texts) == len(set(texts)) == 7680
    steps = np.diff([every.index(text) for text in texts[:100]])
    assert (texts[0], texts[-1]) == (every[0], every[-1])
    assert np.ptp(steps) <= 1
    assert len(corpus_sentences(10_000)) == len(every)
