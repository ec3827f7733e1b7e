"""Test `whiten sweep` from end to end on a small checkpoint."""

import base64
import csv
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from support.cli import invoke as invoke_command
from support.sizes import LAYERS
from support.sts import write_paper_layout
from whiten_evaluation.commands.sweep import sweep
from whiten_evaluation.embedding import WhiteningSource, embed_texts
from whiten_evaluation.sweep import sweep as sweeping
from whiten_evaluation.sweep.combinations import SearchLimits
from whiten_evaluation.sweep.graph import LayerGraph
from whiten_evaluation.tasks.sts import score_sts
from whiten_evaluation.tasks.sts_files import read_sts
from whiten_export.writing.staging import locked
from whiten_runtime.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, ("STS-B", "STS15"))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(checkpoint: Callable[[str], Path], data_folder: Path, cache: Path, tmp_path: Path) -> Callable[..., Result]:
    def invoke(*arguments: object, model: object = None) -> Result:
        line = [model or checkpoint("bert"), "--data", data_folder, "--cache", cache, "--out", tmp_path / "out"]
        return invoke_command(sweep, *line, *arguments)

    return invoke


def test_every_pooling_can_be_swept(run: Callable[..., Result], tmp_path: Path) -> None:
    """Each is checked against its definition before it is scored."""
    poolings = ("max", "weightedmean", "mean_sqrt_len", "cls_avg", "pooler")
    options = [part for pooling in poolings for part in ("--pooling", pooling)]
    result = run("--no-speed", "--layers", "1,-1", *options)
    assert result.exit_code == 0, result.stderr
    document = json.loads((tmp_path / "out" / "sweep.json").read_text("utf-8"))
    for pooling in poolings:
        assert found(document, pooling, "none")


def found(document: dict, pooling: str, whitening: str) -> dict[tuple[int, ...], float | None]:
    return {
        tuple(score["layers"]): score["average"]
        for score in document["scores"]
        if (score["pooling"], score["whitening"]) == (pooling, whitening)
    }


def test_report_is_complete_and_agrees_with_sts_scores(
    run: Callable[..., Result], tmp_path: Path, tiny_bundle: Path, data_folder: Path
) -> None:
    result = run("--json")
    assert result.exit_code == 0, result.stderr
    assert "STS12 is absent" in result.stderr
    document = json.loads(result.stdout)["sweep"]
    out = tmp_path / "out"
    assert json.loads((out / "sweep.json").read_bytes()) == document
    names = {"layers", "pairs", "sizes", "shrinkage", "betas", "dimensions", "depths"}
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "scores.csv",
        "sweep.json",
        *(f"{name}.png" for name in names),
    }
    html = (out / "report.html").read_text("utf-8")
    pictures = [base64.b64decode(part) for part in re.findall(r"data:image/png;base64,([^\"]+)", html)]
    assert sorted(pictures) == sorted((out / f"{name}.png").read_bytes() for name in names)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert not re.search(r"(src|href)=\"(?!data:)", html)  # the report needs no other file
    with (out / "scores.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(document["scores"])
    counts = {
        (p, kind): len(found(document, p, kind)) for p in ("mean", "cls") for kind in ("none", "target", "corpus")
    }
    assert [counts[p, kind] for p in ("mean", "cls") for kind in ("none", "target")] == [31] * 4
    assert all(15 < counts[p, "corpus"] < 31 for p in ("mean", "cls"))  # single layers, pairs and the best of a size
    # The bundle of layers 1 and 4, exported and evaluated by other code, agrees.
    data = read_sts(data_folder, ("STS-B", "STS15"))
    for kind in ("none", "target"):
        whitening = WhiteningSource(kind)  # type: ignore[arg-type]
        scores = score_sts(data, embed_texts(tiny_bundle, data.texts, whitening), whitening)
        want = float(np.mean([task.mean for task in scores.tasks]))
        assert found(document, "mean", kind)[1, LAYERS] == pytest.approx(want, abs=0.03)
    assert found(document, "cls", "target")[0,] is None  # the first token is the same in every text
    assert found(document, "cls", "none")[0,] is None
    assert found(document, "cls", "corpus")[0,] is None
    assert "No value for layer 0 with cls pooling: every text has the same vector there" in html
    assert html.count('<tr class="best">') >= 2 * 3 * 2  # tables of both kinds, three of each, two poolings
    assert (document["corpus_sentences"], document["task_sentences"][0]) == (320, 120)
    for fits in document["fits"]:
        full = fits["averages"][0 if fits["varied"] == "shrinkage" else -1]
        assert full == pytest.approx(found(document, "mean", fits["whitening"])[tuple(fits["layers"])], abs=0.05)
    assert {(fits["whitening"], fits["varied"]) for fits in document["fits"]} == {
        *(("target", "shrinkage"), ("target", "beta"), ("corpus", "shrinkage"), ("corpus", "beta"))
    }
    curve = document["curves"][0]
    assert curve["averages"][-1] == pytest.approx(found(document, "mean", "target")[tuple(curve["layers"])], abs=0.03)
    assert [depth["layer"] for depth in document["depths"]] == list(range(LAYERS + 1))
    for depth in document["depths"]:
        low, high = depth["spread"]
        assert 0 < low <= depth["texts_per_second"] <= high
    best = [depth["best"]["average"] for depth in document["depths"]]
    assert best == sorted(best)


def test_second_sweep_reuses_cached_vectors(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--no-speed", "--pooling", "mean").exit_code == 0
    first = json.loads((tmp_path / "out" / "sweep.json").read_bytes())

    def never(*arguments: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(sweeping, "write_layers", never)
    monkeypatch.setattr(LayerGraph, "embedder", never)
    result = run("--no-speed", "--pooling", "mean", "--force")
    assert result.exit_code == 0
    second = json.loads((tmp_path / "out" / "sweep.json").read_bytes())
    assert second["scores"] == first["scores"]
    assert not (tmp_path / "out" / "depths.png").exists()


def test_constant_first_token_has_no_scores(
    run: Callable[..., Result], checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaMA's first token attends only to itself, in every layer: there is nothing to compare, extend or draw."""
    monkeypatch.setattr(sweeping, "SweepPlan", partial(sweeping.SweepPlan, limits=SearchLimits(exhaustive=3)))
    result = run("--pooling", "cls", "--pooling", "last", model=checkpoint("llama"))
    assert result.exit_code == 0, result.stderr
    document = json.loads((tmp_path / "out" / "sweep.json").read_bytes())
    for kind in ("none", "target", "corpus"):
        assert set(found(document, "cls", kind).values()) == {None}
    assert "No best layers: up to that depth" in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert None not in found(document, "last", "target").values()
    assert all(depth["best"] is None for depth in document["depths"])
    assert "inf" not in (tmp_path / "out" / "scores.csv").read_text()


def test_changed_config_gets_another_cache_folder(
    run: Callable[..., Result], checkpoint: Callable[[str], Path], tmp_path: Path, cache: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(checkpoint("bert"), mine)
    assert run("--no-speed", "--layers", "0,1", "--pooling", "mean", model=mine).exit_code == 0
    before = set(cache.iterdir())
    config = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1}))
    assert run("--no-speed", "--layers", "0,1", "--pooling", "mean", "--force", model=mine).exit_code == 0
    assert len(set(cache.iterdir()) - before) == 1


def test_damaged_graph_is_rebuilt(run: Callable[..., Result], cache: Path) -> None:
    assert run("--no-speed", "--layers", "0,2", "--pooling", "mean").exit_code == 0
    folder = max(cache.iterdir(), key=lambda path: path.stat().st_mtime)
    (folder / "graph" / "model.onnx").write_bytes(b"nothing")
    shutil.rmtree(next(folder.glob("texts-*")))
    assert run("--no-speed", "--layers", "0,2", "--pooling", "mean", "--force").exit_code == 0


def test_beam_search_scores_agree_with_exhaustive_search(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--no-speed", "--pooling", "mean").exit_code == 0
    every = json.loads((tmp_path / "out" / "sweep.json").read_bytes())
    limits = SearchLimits(exhaustive=3, beam=2)
    monkeypatch.setattr(sweeping, "SweepPlan", partial(sweeping.SweepPlan, limits=limits))
    assert run("--no-speed", "--pooling", "mean", "--force").exit_code == 0
    some = json.loads((tmp_path / "out" / "sweep.json").read_bytes())
    assert every["exhaustive"]
    assert not some["exhaustive"]
    assert len(some["scores"]) < len(every["scores"])
    for kind in ("none", "target"):
        known, tried = found(every, "mean", kind), found(some, "mean", kind)
        assert {len(layers) for layers in tried} == {1, 2, 3, 4, 5}
        for layers, average in tried.items():
            assert average == pytest.approx(known[layers], abs=0.03)
    assert "beam search" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "9"], "layer 9 does not exist"),
        (["--layers", "2"], "a sweep needs two or more"),
        (["--pooling", "mean", "--pooling", "mean"], "names one twice"),
        (["--max-length", "9999"], "max-length is 9999"),
    ],
)
def test_errors_are_one_line(run: Callable[..., Result], tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_existing_folder_is_not_replaced(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    result = run("--force")
    assert result.exit_code == 2
    assert "exists and is not a sweep; choose another --out" in result.stderr
    (tmp_path / "out" / "mine.txt").rename(tmp_path / "out" / "sweep.json")
    assert "sweep '" in run().stderr


def test_failed_sweep_leaves_no_files(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("--layers", "99", "--out", tmp_path / "sweeps" / "tiny")
    assert result.exit_code == 2
    assert not (tmp_path / "sweeps").exists()


def test_unwritable_output_is_detected_before_the_sweep(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    result = run("--out", tmp_path / "file" / "sweeps" / "tiny")
    assert result.exit_code == 2
    assert "cannot be written; choose another --out" in result.stderr
    assert "·" not in result.stderr


def test_cache_in_use_is_refused(run: Callable[..., Result], cache: Path) -> None:
    assert run("--no-speed", "--layers", "0,1").exit_code == 0
    folder = max(cache.iterdir(), key=lambda path: path.stat().st_mtime)
    with locked(folder):
        result = run("--no-speed", "--layers", "0,1", "--force")
    assert result.exit_code == 2
    assert "is in use by another process" in result.stderr


def test_sweep_goes_on_without_a_built_in_corpus(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: object) -> None:
        raise DataError("there is no built-in corpus")

    monkeypatch.setattr(sweeping, "read_corpus", missing)
    result = run("--no-speed", "--pooling", "mean", "--layers", "0,1", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["warnings"][-1] == "nothing is whitened on a corpus: there is no built-in corpus"
    assert not found(document["sweep"], "mean", "corpus")
    assert (document["sweep"]["corpus"], document["sweep"]["corpus_sentences"]) == (None, 0)
    assert {fits["whitening"] for fits in document["sweep"]["fits"]} == {"target"}


def test_word_vectors_are_refused(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("a 1 2\nb 2 1\n")
    result = run(model=path)
    assert result.exit_code == 2
    assert "is word vectors, which have one layer" in result.stderr
