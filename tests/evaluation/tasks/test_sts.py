"""Test the protocol against scipy and the whitening code of the papers, and the commands."""

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.stats import spearmanr

from support.cli import invoke, ok, refused
from support.corpus import sentences
from support.sts import write_paper_layout
from whiten import Encoder, UsageError
from whiten_evaluation.commands import evaluate
from whiten_evaluation.embedding import WhiteningSource, embed_texts
from whiten_evaluation.tasks.sts import score_sts
from whiten_evaluation.tasks.sts_files import SUBSETS, read_sts
from whiten_export.pipeline.export_model import export_bundle
from whiten_export.pipeline.recipe import Recipe
from whiten_export.proof.reference import Head
from whiten_whitening.maps import Method, WhiteningSpec

pytestmark = pytest.mark.slow

run = partial(ok, "eval")


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sts")
    write_paper_layout(folder, tuple(SUBSETS))
    return folder


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / norms)


def by_hand(bundle: Path, folder: Path, source: str) -> dict[str, tuple[float, float, float]]:
    """Compute mean, wmean and all of each task by loops, SVD and scipy."""
    found = {}
    with Encoder(bundle) as encoder:
        for task in read_sts(folder).tasks:
            pairs = []
            for subset in task.subsets:
                columns = (subset.first, subset.second)
                if source == "bundle":
                    pairs.append([encoder.encode(list(column)) for column in columns])
                else:
                    pairs.append([unwhitened(bundle, list(column)) for column in columns])
            if source == "task":
                every = np.concatenate([np.concatenate(pair) for pair in pairs])
                u, s, _ = np.linalg.svd(np.cov(every.T))  # as in the papers' code
                pairs = [[(part - every.mean(axis=0)) @ u / np.sqrt(s) for part in pair] for pair in pairs]
            similarities = [cosines(*pair) for pair in pairs]
            gold = [subset.scores for subset in task.subsets]
            each = [100 * spearmanr(a, b).statistic for a, b in zip(similarities, gold, strict=True)]
            weighted = np.average(each, weights=[len(part) for part in gold])
            together = 100 * spearmanr(np.concatenate(similarities), np.concatenate(gold)).statistic
            found[task.name] = (float(np.mean(each)), float(weighted), together)
    return found


def unwhitened(bundle: Path, texts: list[str]) -> np.ndarray:
    """Embed texts and invert the bundle's whitening, in float64: W is square and has full rank."""
    stored = load_file(bundle / "whitening.safetensors")
    with Encoder(bundle) as encoder:
        return encoder.encode(texts).astype(float) @ np.linalg.inv(stored["W"]) + stored["mean"]


@pytest.mark.parametrize("source", ["bundle", "task", "none"])
def test_scores_equal_scipy_by_hand(tiny_bundle: Path, data_folder: Path, source: str) -> None:
    data = read_sts(data_folder)
    whitening = WhiteningSource(source)  # type: ignore[arg-type]
    scores = score_sts(data, embed_texts(tiny_bundle, data.texts, whitening), whitening)
    for task, want in zip(scores.tasks, by_hand(tiny_bundle, data_folder, source).values(), strict=True):
        assert (task.mean, task.wmean, task.all) == pytest.approx(want, abs=0.02), task.name
    assert scores.seven is not None
    assert scores.seven["mean"] == pytest.approx(np.mean([task.mean for task in scores.tasks]))


def test_target_whitening_uses_dimension_and_beta(tiny_bundle: Path, data_folder: Path) -> None:
    data = read_sts(data_folder, ("STS-B",))
    vectors = embed_texts(tiny_bundle, data.texts, WhiteningSource("task"))
    texts = [*data.tasks[0].subsets[0].first, *data.tasks[0].subsets[0].second]
    every = vectors.of(texts)
    values, basis = np.linalg.eigh(np.cov(every.T))
    for dimension, beta in ((8, 1.0), (None, 0.5), (None, 0.0)):
        whitening = WhiteningSource("task", WhiteningSpec("pca", dimension, beta))
        W = (basis * values ** (-beta / 2))[:, ::-1][:, :dimension]
        white = Head((every.mean(axis=0), W), False)(every)
        half = len(white) // 2
        want = 100 * spearmanr(cosines(white[:half], white[half:]), data.tasks[0].subsets[0].scores).statistic
        assert score_sts(data, vectors, whitening).tasks[0].mean == pytest.approx(want, abs=1e-6)


def sts_mean(bundle: Path, folder: Path, *options: object) -> float:
    """Return the mean of STS15 that the command prints as JSON."""
    result = run("sts", bundle, "--data", folder, "--tasks", "STS15", "--fit-on", "task", "--json", *options)
    return float(json.loads(result.stdout)["bundles"][0]["tasks"][0]["mean"])


@pytest.mark.parametrize("method", get_args(Method))
def test_full_whitening_scores_the_same_with_every_method(tiny_bundle: Path, data_folder: Path, method: str) -> None:
    """They differ by a rotation, which no cosine sees."""
    want = sts_mean(tiny_bundle, data_folder)
    assert sts_mean(tiny_bundle, data_folder, "--whitening", method) == pytest.approx(want, abs=0.02)


def test_truncate_bundle_to_leading_dimensions(tiny_bundle: Path, data_folder: Path) -> None:
    data = read_sts(data_folder, ("STS-B",))
    whitening = WhiteningSource.parse("bundle", 8)
    vectors = embed_texts(tiny_bundle, data.texts, whitening)
    with Encoder(tiny_bundle) as encoder:
        np.testing.assert_array_equal(vectors.vectors, encoder.encode(data.texts, truncate_dim=8))
    for dimension, message in ((33, "wanted a whole number from 1 to 32"), (0, "from 1 to 32")):
        with pytest.raises(UsageError, match=message):
            embed_texts(tiny_bundle, data.texts, WhiteningSource.parse("bundle", dimension))


def test_command_prints_table_json_and_csv(tiny_bundle: Path, data_folder: Path) -> None:
    result = run("sts", tiny_bundle, tiny_bundle, "--data", data_folder)
    assert result.stdout.count("average of the seven") == 2
    assert "absent" not in result.stderr
    document = json.loads(run("sts", tiny_bundle, "--data", data_folder, "--json").stdout)
    assert document["absent"] == {}
    table = list(csv.DictReader(io.StringIO(run("sts", tiny_bundle, "--data", data_folder, "--csv").stdout)))
    assert [row["task"] for row in table] == [*SUBSETS, "average of the seven"]
    for row, task in zip(table, document["bundles"][0]["tasks"], strict=False):
        assert (float(row["mean"]), float(row["wmean"]), float(row["all"])) == (
            task["mean"],
            task["wmean"],
            task["all"],
        )
    assert float(table[-1]["all"]) == document["bundles"][0]["seven"]["all"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "sts99"], "task 'sts99' is unknown"),
        (["--fit-on", "none", "--dim", "8"], "needs a whitening"),
        (["--fit-on", "none", "--whitening", "zca"], "whitening zca is for --fit-on task"),
        (["--shrinkage", "0.5"], "shrinkage 0.5 is for --fit-on task"),
        (["--dim", "33"], "wanted a whole number from 1 to 32"),
        (["--fit-on", "task", "--dim", "33"], "dim is 33"),
        (["--fit-on", "task", "--shrinkage", "much"], "shrinkage is 'much'; wanted none, ledoit-wolf, oas"),
        (["--fit-on", "task", "--whitening", "zca", "--dim", "8"], "dim 8 cannot be kept of zca"),
    ],
)
def test_errors_are_one_line(tiny_bundle: Path, data_folder: Path, arguments: list[str], message: str) -> None:
    assert message in refused("eval", "sts", tiny_bundle, "--data", data_folder, *arguments)


def test_too_few_sentences_to_whiten_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    write_paper_layout(tmp_path, ("STS-B",), count=12)
    result = invoke(evaluate, "sts", tiny_bundle, "--data", tmp_path, "--fit-on", "task")
    assert result.exit_code == 2
    assert "STS-B: 24 sentences cannot whiten 32 dimensions" in result.stderr
    assert "STS12 is absent: no file of it (MSRpar, " in result.stderr
    assert json.loads(run("sts", tiny_bundle, "--data", tmp_path, "--json").stdout)["bundles"][0]["seven"] is None


@pytest.fixture(scope="module")
def other_bundles(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that exports a bundle of another kind, on layers 1 and 4."""
    folder = tmp_path_factory.mktemp("others")
    words = folder / "words.txt"
    random = np.random.default_rng(0)
    vocabulary = sorted({word.lower() for text in sentences(300) for word in text.split()})
    words.write_text("\n".join(f"{word} {' '.join(f'{x:.4f}' for x in random.normal(1, 1, 8))}" for word in vocabulary))

    def make(name: str) -> Path:
        model, options = {
            "int8": (checkpoint("bert", 4), {"precision": "int8", "dim": 32}),
            "normalised": (checkpoint("bert"), {"normalize": True}),
            "raw": (checkpoint("bert"), {"whitening": None, "normalize": True}),
            "sif": (words, {"pooling": "sif"}),
        }[name]
        if not (folder / name).exists():
            if name != "raw":
                options["max_sentences"] = 600
            layers = (0,) if name == "sif" else (1, 4)
            export_bundle(Recipe(str(model), layers=layers, **options), folder / name)
        return folder / name

    return make


@pytest.mark.parametrize("name", ["int8", "normalised", "raw", "sif"])
def test_scores_of_other_kinds_of_bundles(other_bundles: Callable[..., Path], data_folder: Path, name: str) -> None:
    path = other_bundles(name)
    data = read_sts(data_folder, ("STS15",))
    found = {}
    for whitening in (WhiteningSource("bundle"), WhiteningSource("task"), WhiteningSource("none")):
        vectors = embed_texts(path, data.texts, whitening)
        found[whitening.source] = score_sts(data, vectors, whitening).tasks[0].mean
    with Encoder(path) as encoder:
        want = [
            100 * spearmanr(cosines(encoder.encode(subset.first), encoder.encode(subset.second)), subset.scores)[0]
            for subset in data.tasks[0].subsets
        ]
    assert found["bundle"] == pytest.approx(np.mean(want), abs=0.02)
    assert (found["bundle"] == pytest.approx(found["none"], abs=0.02)) is (name == "raw")
    assert 0 < found["task"] < 100


def test_bundle_of_vectors_is_refused_before_embedding(tiny_bundle: Path, golden: Path, data_folder: Path) -> None:
    result = invoke(evaluate, "sts", tiny_bundle, golden / "bundle-v1-vectors", "--data", data_folder)
    assert result.exit_code == 1
    assert "takes vectors, not texts" in result.stderr
    assert "·" not in result.stderr  # no stage began


def test_a_bundle_that_a_version_before_this_output_wrote_is_refused(golden: Path, data_folder: Path) -> None:
    result = invoke(evaluate, "sts", golden / "bundle-v1", "--data", data_folder, "--fit-on", "none")
    assert result.exit_code == 1
    assert "has no output unwhitened_embedding" in result.stderr


def test_isotropy_command_measures_before_and_after_whitening(
    tiny_bundle: Path, data_folder: Path, tmp_path: Path
) -> None:
    document = json.loads(run("isotropy", tiny_bundle, "--data", data_folder, "--json").stdout)
    before, after = (document["bundles"][0][name] for name in ("before", "after"))
    assert after["iso_score"] > before["iso_score"]
    with Encoder(tiny_bundle) as encoder:
        vectors = encoder.encode(list(read_sts(data_folder).texts)).astype(float)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    n = len(units)
    assert after["average_cosine"] == pytest.approx(((units @ units.T).sum() - n) / (n * (n - 1)), abs=1e-6)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(read_sts(data_folder).texts), "utf-8")
    assert json.loads(run("isotropy", tiny_bundle, "--input", texts, "--json").stdout) == document
    refused("eval", "isotropy", tiny_bundle)
    refused("eval", "isotropy", tiny_bundle, "--data", data_folder, "--column", "x")
