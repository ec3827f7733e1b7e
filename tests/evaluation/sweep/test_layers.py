"""Test scores of all combinations of layers, computed from cached vectors, against a direct computation."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sizes import LAYERS, WIDTH
from support.sts import write_paper_layout
from support.task_vectors import direct_score, made
from whiten_evaluation.sweep import store
from whiten_evaluation.sweep.combinations import all_combinations, extended, search_layers, singles_and_pairs
from whiten_evaluation.sweep.graph import LayerGraph, check_layers, write_layers
from whiten_evaluation.sweep.scoring import raw_scores, white_scores
from whiten_evaluation.sweep.store import embed_layers
from whiten_evaluation.tasks.sts_files import Task, read_sts
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.choice import SourceChoice
from whiten_export.sources.opening import open_model
from whiten_runtime import ParityError, WhitenError
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.maps import WhiteningSpec

pytestmark = pytest.mark.slow

OPTIONS = SessionOptions(threads=2)


def nothing(count: int) -> None:
    pass


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, ("STS15",))
    return read_sts(folder, ("STS15",)).tasks[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_scores_of_all_combinations_equal_direct_computation(task: Task, threads: int) -> None:
    data = made(task)
    combinations = all_combinations(data.layers)
    counted: list[int] = []
    white = white_scores(data, combinations, threads, counted.append)
    raw = raw_scores(data, combinations)
    assert sum(counted) == len(combinations) == 31
    for layers, mine, plain in zip(combinations, white, raw, strict=True):
        if layers == (1,):
            assert np.isnan(mine)  # all vectors are equal
            continue
        assert mine == pytest.approx(direct_score(data, layers, WhiteningSpec()), abs=0.05), layers
        assert plain == pytest.approx(direct_score(data, layers, None), abs=0.05), layers


def test_scores_are_the_same_without_cross_covariances(task: Task) -> None:
    data = made(task)
    combinations = all_combinations(data.layers)
    want = white_scores(data, combinations)
    np.testing.assert_allclose(white_scores(data, combinations, most_bytes=0), want, atol=0.02)


def test_too_few_sentences_give_nan(task: Task) -> None:
    width = len(task.texts)
    data = made(task, layers=2, width=width - 1)
    assert np.isnan(white_scores(data, [(0,), (0, 1)])).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 9))
def test_combinations_are_complete_distinct_and_sorted(count: int) -> None:
    layers = tuple(range(count))
    every = all_combinations(layers)
    assert len(set(every)) == len(every) == 2**count - 1
    assert every == sorted(every)
    assert set(singles_and_pairs(layers)) == {found for found in every if len(found) <= 2}
    assert extended([(0,)], layers) == [(0, layer) for layer in layers[1:]]


def test_layer_0_is_left_out_if_the_others_are_few_enough() -> None:
    assert search_layers(range(7)) == tuple(range(7))
    assert search_layers(range(13)) == tuple(range(1, 13))  # 4,095 combinations of BERT-base's blocks
    assert search_layers(range(25)) == tuple(range(25))


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> TokenModel:
    directory = str(checkpoint("bert"))
    return open_model(resolve(directory), SourceChoice(directory))


@pytest.fixture(scope="module")
def graph(model: TokenModel, tmp_path_factory: pytest.TempPathFactory) -> LayerGraph:
    folder = tmp_path_factory.mktemp("graph")
    made = LayerGraph(folder, model.layers, ("mean", "cls"), WIDTH, model.tokenizer.pad_token_id, 40)
    write_layers(model, made)
    return made


def test_every_layer_equals_the_reference(model: TokenModel, graph: LayerGraph) -> None:
    advanced: list[int] = []
    check_layers(model, graph, OPTIONS, advanced.append)
    assert sum(advanced) == 2


def test_swapped_layers_fail_the_parity_gate(model: TokenModel, graph: LayerGraph) -> None:
    swapped = LayerGraph(graph.folder, (0, 2, 1, 3, 4), graph.poolings, WIDTH, graph.pad_token_id, 40)
    with pytest.raises(ParityError, match="layer 2 with mean pooling is not what torch"):
        check_layers(model, swapped, OPTIONS, nothing)


def test_cut_graph_gives_the_same_vectors_and_is_smaller(graph: LayerGraph) -> None:
    sizes = []
    for layer in graph.layers:
        path = graph.folder / f"cut-{layer}.onnx"
        name = graph.write_depth(layer, "mean", path)
        sizes.append(path.stat().st_size)
        embedder, whole = graph.embedder(OPTIONS, path, name), graph.embedder(OPTIONS)
        ((_, got),) = embedder.windows(["some text", "more"], embedder.whole(name))
        ((_, want),) = whole.windows(["some text", "more"], whole.whole("layer_vectors"))
        np.testing.assert_allclose(got, graph.split(want)[0, layer], atol=1e-6)
    assert sizes == sorted(set(sizes))
    assert len(sizes) == LAYERS + 1


class StopError(Exception):
    pass


def test_interrupted_embedding_resumes_after_the_last_complete_part(
    graph: LayerGraph, task: Task, tmp_path: Path
) -> None:
    texts = tuple(dict.fromkeys(task.texts))
    want = embed_layers(graph, texts, tmp_path / "whole", OPTIONS, nothing, 50)
    done = 0

    def stop(count: int) -> None:
        nonlocal done
        done += count
        if done >= 120:
            raise StopError

    with pytest.raises(StopError):
        embed_layers(graph, texts, tmp_path / "parts", OPTIONS, stop, 50)
    counted: list[int] = []
    got = embed_layers(graph, texts, tmp_path / "parts", OPTIONS, counted.append, 50)
    assert counted[0] == 100  # two parts were stored
    assert sum(counted) == len(texts)
    np.testing.assert_allclose(got.table, want.table, atol=1e-6)
    again: list[int] = []
    embed_layers(graph, texts, tmp_path / "parts", OPTIONS, again.append, 50)
    assert again == [len(texts)]


def test_damaged_cache_is_recomputed(graph: LayerGraph, tmp_path: Path) -> None:
    texts = ("one text", "another", "a third one")
    want = embed_layers(graph, texts, tmp_path, OPTIONS, nothing)
    kept = np.array(want.table)
    del want
    (tmp_path / "vectors.npy").write_bytes(b"not an array")
    np.testing.assert_allclose(embed_layers(graph, texts, tmp_path, OPTIONS, nothing).table, kept, atol=1e-6)


def test_full_disk_is_detected_before_embedding(
    graph: LayerGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(store.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(WhitenError, match=r"take 0.0 GB, but only 0.0 GB are free; name another --cache"):
        embed_layers(graph, ("one text",), tmp_path, OPTIONS, nothing)
    assert not list(tmp_path.iterdir())


def test_lost_table_is_recomputed_after_an_interruption(graph: LayerGraph, task: Task, tmp_path: Path) -> None:
    """An interruption of the second pass leaves a table of zeros, of which no text may count as done."""
    texts = tuple(dict.fromkeys(task.texts))
    want = np.array(embed_layers(graph, texts, tmp_path, OPTIONS, nothing, 50).table)
    (tmp_path / "vectors.npy").unlink()

    def stop(count: int) -> None:
        if count:
            raise StopError

    with pytest.raises(StopError):
        embed_layers(graph, texts, tmp_path, OPTIONS, stop, 50)
    np.testing.assert_allclose(embed_layers(graph, texts, tmp_path, OPTIONS, nothing, 50).table, want, atol=1e-6)


def test_no_combinations_give_no_scores(task: Task) -> None:
    data = made(task)
    assert raw_scores(data, []).shape == white_scores(data, []).shape == (0,)
