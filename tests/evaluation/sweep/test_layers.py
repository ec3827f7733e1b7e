"""Test scores of combinations of layers against a direct computation, and the graph and file of all layers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.families import WIDTH
from support.sts import write_paper_layout
from whiten import ParityError, WhitenError
from whiten_evaluation.sts import Task, read_sts
from whiten_evaluation.sweep import layers as layers_of_models
from whiten_evaluation.sweep.layers import LayerGraph, check_layers, embed_layers, open_graph, write_layers
from whiten_evaluation.sweep.scoring import LayerMoments, TaskVectors, raw_cosines, white_scores
from whiten_evaluation.sweep.search import of_sizes, searched_layers
from whiten_evaluation.sweep.sweep import corpus_sentences
from whiten_export.sources.model import TokenModel
from whiten_export.sources.opening import open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.files.corpus import builtin_sentences
from whiten_runtime.inference.options import Prompts
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Shrinkage, WhiteningSpec, fit_map
from whiten_whitening.measures import cosines, spearman
from whiten_whitening.moments import Moments

pytestmark = pytest.mark.slow

OPTIONS = SessionOptions(threads=2)
NO_PROMPTS = Prompts()
EVERY = sorted(of_sizes(range(5), range(1, 6)))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, ("STS15",))
    return read_sts(folder, ("STS15",)).tasks[0]


def made(task: Task, layers: int = 5, width: int = 12) -> TaskVectors:
    """Make anisotropic vectors, similar for texts with common words; layer 0 is singular, layer 1 constant."""
    random = np.random.default_rng(0)
    texts = list(dict.fromkeys(task.texts))
    words = {word: random.normal(size=(layers, width)) for text in texts for word in text.split()}
    scale = np.geomspace(1, 30, width)
    vectors = np.stack([np.mean([words[word] for word in text.split()], axis=0) for text in texts], axis=1) * scale + 3
    vectors[0, :, 0] = vectors[0, :, 1]
    vectors[1] = vectors[1, :1]
    return TaskVectors.of(task, tuple(range(layers)), texts, vectors.astype(np.float32))


def direct(
    data: TaskVectors, layers: tuple[int, ...], fitted_on: np.ndarray | None, shrinkage: Shrinkage = "none"
) -> float:
    """Score the mean of some layers' vectors by `fit_map`, fitted on the mean of other vectors of these layers."""
    mean = np.mean([data.vectors[layer] for layer in layers], axis=0, dtype=np.float64)
    if fitted_on is not None:
        moments = Moments.of(np.mean([fitted_on[layer] for layer in layers], axis=0, dtype=np.float64))
        fitted = fit_map(moments, WhiteningSpec(shrinkage=shrinkage))
        mean = (mean - fitted.mean) @ fitted.weight
    found = [
        spearman(cosines(mean[a], mean[b]), subset.scores)
        for a, b, subset in zip(data.first, data.second, data.task.subsets, strict=True)
    ]
    return 100 * float(np.mean(found))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("most_bytes", [0, 10**9], ids=["from vectors", "from blocks"])
def test_scores_of_all_combinations_equal_direct_computation(task: Task, threads: int, most_bytes: int) -> None:
    data = made(task)
    repeated = np.repeat(data.vectors, data.counts.astype(int), axis=1)
    counted: list[int] = []
    fitted = LayerMoments(data.layers, data.vectors, data.counts, most_bytes=most_bytes)
    white = white_scores(data, fitted, EVERY, threads, counted.append)
    raw = raw_cosines(data, EVERY)
    assert data.alike() == {1}
    assert sum(counted) == len(EVERY) == 31
    for index, (layers, mine) in enumerate(zip(EVERY, white, strict=True)):
        if layers == (1,):
            assert mine is None  # all vectors are equal
            continue
        assert mine == pytest.approx(direct(data, layers, repeated), abs=0.05), layers
        assert data.score([part[index] for part in raw]) == pytest.approx(direct(data, layers, None), abs=0.05), layers


def test_scores_on_a_corpus_equal_a_fit_for_each_combination(task: Task) -> None:
    data = made(task)
    others = np.random.default_rng(3).normal(size=(5, 200, 12)) * np.geomspace(20, 1, 12) + 1
    for shrinkage in (0.0, 0.1, 0.5):
        fitted = LayerMoments(data.layers, others.astype(np.float32), np.ones(200), shrinkage)
        wanted = [direct(data, layers, others, shrinkage) for layers in ((0,), (0, 2, 4))]
        assert white_scores(data, fitted, [(0,), (0, 2, 4)]) == pytest.approx(wanted, abs=0.05)


def test_too_few_sentences_give_no_score(task: Task) -> None:
    data = made(task, layers=2, width=len(task.texts) - 1)
    fitted = LayerMoments(data.layers, data.vectors, data.counts)
    assert white_scores(data, fitted, [(0,), (0, 1)]) == [None, None]


def test_layer_0_is_left_out_if_the_others_are_few_enough() -> None:
    assert searched_layers(range(7)) == tuple(range(7))
    assert searched_layers(range(13)) == tuple(range(1, 13))  # 4,095 combinations of BERT-base's blocks
    assert searched_layers(range(25)) == tuple(range(25))


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
    with pytest.raises(ParityError, match="layer 2 with mean pooling is not what torch"):
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
    vectors = embed_layers(prompted, ("x", LONG), OPTIONS, Reporter()).of(("x", LONG))
    with graph.embedder(OPTIONS) as plain:
        rows = plain.tokenizer.tokenize(["a dog and a cat: x", "a dog and a cat: " + LONG])
        left_out = 0 if pooled else plain.tokenizer.prompt_tokens("a dog and a cat: ")
    ids = [row if len(row) <= 40 else [row[0], *row[-39:]] if side == "left" else [*row[:39], row[-1]] for row in rows]
    reference = model.reference(model.layers, "mean")
    for index, row in enumerate(ids):
        mask = np.ones((1, len(row)), np.int64)
        mask[:, :left_out] = 2
        wanted = reference.pooled(np.asarray([row]), mask)[:, 0]
        np.testing.assert_allclose(vectors[:, index], wanted, atol=1e-5)


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
    graph: LayerGraph, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tuple(dict.fromkeys(task.texts))

    class Stopping(Reporter):
        def bar(self, unit: str, total: int | None):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_layers(graph, texts, OPTIONS, Stopping())
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
    found = embed_layers(graph, texts, OPTIONS, Reporter())
    with graph.embedder(OPTIONS) as embedder:
        want = graph.split(embedder.embed(texts[:3]))
    np.testing.assert_allclose(found.of(texts[:3]), np.moveaxis(want, 0, 1), atol=1e-5)
    monkeypatch.setattr(LayerGraph, "embedder", pytest.fail)
    assert embed_layers(graph, texts[::-1], OPTIONS, Reporter()).table.shape == (len(texts), 5, WIDTH)


def test_full_disk_is_detected_before_embedding(graph: LayerGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_of_models.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100}))
    with pytest.raises(WhitenError, match=r"take 0.0 GB, but only 0.0 GB are free; name another XDG_CACHE_HOME"):
        embed_layers(graph, ("one text",), OPTIONS, Reporter())


def test_sentences_of_the_corpus_are_evenly_spaced_and_distinct() -> None:
    every = list(dict.fromkeys(sentence for _, sentence in builtin_sentences()))
    texts = corpus_sentences(768)
    assert len(texts) == len(set(texts)) == 7680
    steps = np.diff([every.index(text) for text in texts[:100]])
    assert (texts[0], texts[-1]) == (every[0], every[-1])
    assert np.ptp(steps) <= 1
    assert len(corpus_sentences(10_000)) == len(every)
