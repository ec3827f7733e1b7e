"""Test `whiten sweep` from end to end on a small checkpoint."""

import csv
import json
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from scipy.stats import spearmanr
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from support.cli import invoke as invoke_command
from support.cli import ok, refused
from support.corpus import sentences
from support.families import LAYERS, WIDTH
from support.hub import Hub
from support.published import SIZE, save, transformer
from support.sts import write_paper_layout
from whiten_evaluation.commands.sweep import sweep
from whiten_evaluation.sts import read_sts
from whiten_evaluation.sweep import layers as layers_of_models
from whiten_evaluation.sweep.layers import LayerGraph
from whiten_evaluation.sweep.sweep import corpus_sentences
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.inference.loading import load_unwhitened

pytestmark = pytest.mark.slow
pytest.importorskip("matplotlib", reason="needs the extra test-all")


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, ("STS-B", "STS15"))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(
    checkpoint: Callable[[str], Path],
    data_folder: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Result]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def invoke(*arguments: object, model: object = None) -> Result:
        line = [model or checkpoint("bert"), "--data", data_folder, "--out", tmp_path / "out"]
        return invoke_command(sweep, *line, *arguments)

    return invoke


def averages(document: dict, measure: str, whitening: str) -> dict[tuple[int, ...], float | None]:
    scores = (score for score in document[measure] if score["whitening"] == whitening)
    return {tuple(score["layers"]): score["average"] for score in scores}


def average_by_numpy(bundle: Path, folder: Path, whitening: str) -> float:
    """Score a bundle's vectors before its whitening, whitened by numpy's Cholesky root, with scipy's correlation."""
    _, embedder = load_unwhitened(bundle)
    means = []
    for task in read_sts(folder, ("STS-B", "STS15")).tasks:
        rows = embedder.embed(list(corpus_sentences(WIDTH) if whitening == "corpus" else task.texts)).astype(float)
        mean, covariance, shrinkage = rows.mean(0), np.cov(rows.T), 0.5 if whitening == "corpus" else 0.0
        shrunk = (1 - shrinkage) * covariance + (shrinkage + 1e-9) * np.trace(covariance) / WIDTH * np.eye(WIDTH)
        weight = np.linalg.inv(np.linalg.cholesky(shrunk)).T
        correlations = []
        for part in task.subsets:
            sides = [embedder.embed(list(side)).astype(float) for side in (part.first, part.second)]
            a, b = sides if whitening == "none" else [(side - mean) @ weight for side in sides]
            similarities = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            correlations.append(spearmanr(similarities, part.scores).statistic)
        means.append(100 * np.mean(correlations))
    return float(np.mean(means))


def test_scores_agree_with_numpy_and_scipy(
    run: Callable[..., Result], tmp_path: Path, tiny_bundle: Path, data_folder: Path
) -> None:
    result = run("--json")
    assert result.exit_code == 0, result.stderr
    assert "STS12 is absent" in result.stderr
    document = json.loads(result.stdout)["sweep"]
    out = tmp_path / "out"
    assert json.loads((out / "sweep.json").read_bytes()) == document
    assert {path.name for path in out.iterdir()} == {"layers.png", "scores.csv", "sweep.json"}
    assert (out / "layers.png").read_bytes().startswith(b"\x89PNG")
    with (out / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(document["similarity"]) == 3 * 31
    (row,) = [row for row in rows if (row["layers"], row["whitening"]) == (f"1,{LAYERS}", "task")]
    # The bundle of layers 1 and 4, exported by other code, agrees.
    for kind in ("none", "task", "corpus"):
        want = average_by_numpy(tiny_bundle, data_folder, kind)
        assert averages(document, "similarity", kind)[1, LAYERS] == pytest.approx(want, abs=0.03), kind
    assert float(row["average"]) == averages(document, "similarity", "task")[1, LAYERS]
    assert float(row["average"]) == pytest.approx((float(row["STS-B"]) + float(row["STS15"])) / 2)
    assert (document["pooling"], document["corpus"], document["corpus_sentences"]) == ("mean", BUILTIN_CORPUS, 320)
    first, *others = document["best"]
    assert first["score"]["average"] == max(score["average"] for score in document["similarity"])
    assert first["interval"]["low"] < first["score"]["average"] < first["interval"]["high"]
    assert first["difference"] == {"low": 0, "high": 0}
    depths = [row["score"]["layers"][-1] for row in document["best"]]
    assert depths == sorted(set(depths), reverse=True)  # fewer blocks, and a lower score, row by row
    assert all(row["score"]["average"] <= first["score"]["average"] for row in others)


def test_two_layers_give_the_row_of_whiteningbert(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("--layers", f"1,{LAYERS}")
    assert result.exit_code == 0, result.stderr
    header, *lines = [line.split() for line in result.stdout.splitlines()]
    assert header[:3] == ["layers", "whitening", "average"]
    assert header[-2:] == ["STS-B", "STS15"]
    (row,) = [line for line in lines if line[:2] == [f"1,{LAYERS}", "task"]]
    scores = json.loads((tmp_path / "out" / "sweep.json").read_bytes())["similarity"]
    (score,) = [s for s in scores if s["layers"] == [1, LAYERS] and s["whitening"] == "task"]
    assert [row[2], *row[-2:]] == [f"{value:.2f}" for value in (score["average"], *score["values"])]
    assert len(lines) == 9  # both layers and the pair, each in three ways


def test_second_sweep_reuses_cached_vectors(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run().exit_code == 0
    first = json.loads((tmp_path / "out" / "sweep.json").read_bytes())

    def never(*arguments: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(layers_of_models, "write_layers", never)
    monkeypatch.setattr(LayerGraph, "embedder", never)
    result = run("--force")
    assert result.exit_code == 0
    second = json.loads((tmp_path / "out" / "sweep.json").read_bytes())
    assert second["similarity"] == first["similarity"]


def test_constant_first_token_has_no_scores(run: Callable[..., Result], tmp_path: Path) -> None:
    """LLaMA's first token attends only to itself, in every layer: there is nothing to compare or draw."""
    result = run(model=save([transformer("llama"), Pooling(SIZE, "cls")], tmp_path / "llama"))
    assert result.exit_code == 0, result.stderr
    document = json.loads((tmp_path / "out" / "sweep.json").read_bytes())
    assert document["pooling"] == "cls"
    for kind in ("none", "task", "corpus"):
        assert set(averages(document, "similarity", kind).values()) == {None}
    assert document["best"] == []
    assert "inf" not in (tmp_path / "out" / "scores.csv").read_text()


def test_changed_config_gets_another_cache_folder(
    run: Callable[..., Result], checkpoint: Callable[[str], Path], tmp_path: Path, cache: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(checkpoint("bert"), mine)
    assert run("--layers", "0,1", model=mine).exit_code == 0
    before = set((cache / "whiten").iterdir())
    config = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1}))
    assert run("--layers", "0,1", "--force", model=mine).exit_code == 0
    assert len(set((cache / "whiten").iterdir()) - before) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "9"], "layer 9 does not exist"),
        (["--layers", "2"], "a sweep needs two or more"),
    ],
)
def test_errors_are_one_line(run: Callable[..., Result], tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_layers_are_read_before_the_data(tmp_path: Path) -> None:
    assert "layers is '0_1'" in refused("sweep", "minilm", "--data", tmp_path / "absent", "--layers", "0_1")


def test_word_vectors_are_refused(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("a 1 2\nb 2 1\n")
    result = run(model=path)
    assert result.exit_code == 2
    assert "is word vectors, which have one layer" in result.stderr


def write_collection(folder: Path) -> None:
    """Write a collection in BEIR's layout whose queries are the first thirds of documents."""
    (folder / "qrels").mkdir(parents=True)
    texts = sentences(60)
    beginnings = [text[: len(text) // 3] for text in texts[:20]]
    for name, rows in (("corpus", texts), ("queries", beginnings)):
        lines = [json.dumps({"_id": f"{name[0]}{n:02}", "text": text}) for n, text in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    judged = ["query-id\tcorpus-id\tscore", *(f"q{n:02}\tc{n:02}\t1" for n in range(20))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged) + "\n", "utf-8")


def test_search_compares_as_the_models_authors_do(run: Callable[..., Result], tmp_path: Path) -> None:
    """With poolings that are concatenated, and with dot products."""
    pytest.importorskip("pytrec_eval")
    write_collection(tmp_path / "a<b>")
    model = save(
        [transformer("bert"), Pooling(SIZE, ("mean", "max")), Normalize()], tmp_path / "model", similarity_fn_name="dot"
    )
    result = run("--data", tmp_path, "--json", model=model)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)["sweep"]
    assert document["width"] == 2 * SIZE
    scores = averages(document, "search", "none")
    for layers in ((1, 2), (2,)):  # the authors normalise vectors of layer 2 only
        bundle = tmp_path / f"bundle-{len(layers)}"
        ok("export", model, "--layers", ",".join(map(str, layers)), "--whitening", "none", "--out", bundle)
        answer = ok("eval", "retrieval", bundle, "--data", tmp_path / "a<b>", "--json")
        (same,) = json.loads(answer.stdout)["collections"][0]["scores"]
        assert scores[layers] == pytest.approx(same["measures"]["nDCG@10"], abs=0.01)
    assert (document["collections"], document["by_cosine"], document["similarity"]) == (["a<b>"], False, [])


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_search_by_other_distances_is_refused(run: Callable[..., Result], tmp_path: Path, similarity: str) -> None:
    pytest.importorskip("pytrec_eval")
    write_collection(tmp_path / "found")
    model = save([transformer("bert"), Pooling(SIZE, "mean")], tmp_path / "model", similarity_fn_name=similarity)
    result = run("--data", tmp_path / "found", model=model)
    assert result.exit_code == 2
    assert f"compares vectors by {similarity}; search is scored by cosine or dot product" in result.stderr


def test_search_is_scored_as_by_the_bundles_of_the_layers(
    run: Callable[..., Result], checkpoint: Callable[[str], Path], data_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pytrec_eval")
    data = tmp_path / "both"
    shutil.copytree(data_folder, data)
    write_collection(data / "found")
    result = run("--data", data, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)["sweep"]
    assert document["collections"] == ["found"]
    scores = {kind: averages(document, "search", kind) for kind in ("none", "corpus")}
    assert all({(k,) for k in range(1, LAYERS + 1)} < set(of_kind) for of_kind in scores.values())
    plain = tmp_path / "plain"
    ok("export", checkpoint("bert"), "--layers", f"1,{LAYERS}", "--whitening", "none", "--out", plain)
    answer = ok("eval", "retrieval", plain, "--data", data, "--json")
    (same,) = json.loads(answer.stdout)["collections"][0]["scores"]
    assert scores["none"][1, LAYERS] == pytest.approx(same["measures"]["nDCG@10"], abs=0.01)
    assert 0 < same["measures"]["nDCG@10"] < 100
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "search"]
    assert len(rows) == 2 * 15  # five layers and ten pairs, whitened and not
    assert {row["STS-B"] for row in rows} == {""}
    assert {float(row["found"]) for row in rows} == {float(row["average"]) for row in rows}

    result = run("--data", data / "found", "--force", "--json")  # no similarity task
    assert result.exit_code == 0, result.stderr
    alone = json.loads(result.stdout)["sweep"]
    assert (alone["similarity"], alone["tasks"]) == ([], [])
    for kind, of_kind in scores.items():
        assert averages(alone, "search", kind)[(LAYERS,)] == of_kind[(LAYERS,)]


def test_without_torch_no_weights_are_downloaded(
    run: Callable[..., Result], checkpoint: Callable[[str], Path], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    hub.repositories["org/plain"] = {path.name: path.read_bytes() for path in checkpoint("bert").iterdir()}
    monkeypatch.setattr("whiten_export.sources.open_model.version", version)
    result = run(model="org/plain")
    assert result.exit_code == 1
    assert "needs torch; install it" in result.stderr
    assert "config.json" in hub.fetched
    assert "model.safetensors" not in hub.fetched
