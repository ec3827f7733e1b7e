"""Test entailment by cosine: the scores, and the command."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.cli import ok
from support.corpus import sentences
from whiten_evaluation.embedding import TextVectors, WhiteningSource, embed_texts
from whiten_evaluation.tasks.classification import score_entailment
from whiten_evaluation.tasks.classification_files import Split, read_entailment
from whiten_whitening.maps import fit_map
from whiten_whitening.moments import Moments

run = partial(ok, "eval", "rte")


def test_entailment_is_a_cosine_above_the_threshold() -> None:
    angles = np.radians([0, 59, 61, 180])
    ends = np.column_stack([np.cos(angles), np.sin(angles)]) * [[1], [3], [0.5], [2]]
    vectors = TextVectors({"start": 0, "a": 1, "b": 2, "c": 3, "d": 4}, np.vstack([[7, 0], ends]).astype(np.float32))
    answers = np.array([1, 0, 0, 1])
    pairs = Split(("start",) * 4, ("a", "b", "c", "d"), answers)
    found = score_entailment(pairs, vectors, WhiteningSource("none"))
    assert (found.n, found.accuracy, found.majority, found.entailed) == (4, 50, 50, 50)
    assert score_entailment(pairs, vectors, WhiteningSource("none"), 0.6).accuracy == 75


def test_command_scores_with_each_whitening(tiny_bundle: Path, tmp_path: Path) -> None:
    data, texts = tmp_path, sentences(120)
    pairs_of_texts = enumerate(zip(texts[:60], texts[60:], strict=True))
    lines = [f"{n}\t{a}\t{b}\t{'entailment' if n % 3 else 'not_entailment'}" for n, (a, b) in pairs_of_texts]
    (data / "dev.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n", "utf-8")
    table = run(tiny_bundle, "--data", data)
    assert table.stdout.split("\n")[0].split() == ["bundle", "pairs", "accuracy", "majority", "entailed"]
    pairs, file = read_entailment(data)
    for source in ("bundle", "task", "none"):
        result = run(tiny_bundle, "--data", data, "--fit-on", source, "--json", "--threshold", "0.25")
        document = json.loads(result.stdout)
        assert (document["whitening"], document["threshold"], document["file"]) == (source, 0.25, str(file))
        vectors = embed_texts(tiny_bundle, pairs.sentences, WhiteningSource(source))  # type: ignore[arg-type]
        first, second = vectors.of(pairs.texts), vectors.of(pairs.second)
        if source == "task":  # fitted on both columns
            white = fit_map(Moments.of(np.concatenate([first, second])))
            first, second = ((part - white.mean) @ white.weight for part in (first, second))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        decided = (first * second).sum(axis=1) / lengths > 0.25
        score = document["bundles"][0]["score"]
        assert score["accuracy"] == pytest.approx(100 * np.mean(decided == pairs.labels))
        assert score["entailed"] == pytest.approx(100 * decided.mean())
        assert (score["n"], round(score["majority"], 2)) == (60, 66.67)
    csv = run(tiny_bundle, tiny_bundle, "--data", data, "--csv")
    assert [line.split(",")[1] for line in csv.stdout.splitlines()] == ["pairs", "60", "60"]
