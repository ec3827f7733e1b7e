"""Test `--whitening auto`: by rules, and by pairs with scores."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from support.cli import ok, refused
from support.corpus import sentences
from support.vectors import anisotropic
from whiten import DataError, Encoder, UsageError
from whiten_runtime.files.pairs import read_pairs
from whiten_whitening.choosing import choose_by_pairs, choose_by_rules
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map
from whiten_whitening.moments import Moments, oas
from whiten_whitening.similarity import spearman

pytestmark = pytest.mark.slow


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-1, 1)), min_size=3, max_size=40))
def test_spearman_equals_scipy(pairs: list[tuple[int, float]]) -> None:
    a, b = (np.array(values, float) for values in zip(*pairs, strict=True))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert spearman(a, b) == 0
    else:
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


ROWS = [(f"sentence {n}", f"another, {n}", float(n % 5)) for n in range(12)]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "sts.csv"])
def test_pairs_are_read_from_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"pairs.{kind}"
    lines = {
        "csv": ["score,sentence1,sentence2", *(f'{s},"{a}","{b}"' for a, b, s in ROWS)],
        "tsv": ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{s}" for a, b, s in ROWS)],
        "jsonl": [json.dumps({"sentence1": a, "sentence2": b, "score": s}) for a, b, s in ROWS],
        "sts.csv": [f"main\tnews\t2012\t{n}\t{s}\t{a}\t{b}" for n, (a, b, s) in enumerate(ROWS)],
    }[kind]
    path.write_text("\n".join(lines) + "\n\n", "utf-8")
    pairs = read_pairs(path)
    assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == ROWS
    assert (pairs.record.name, pairs.record.sentences) == (path.name, 12)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.csv", "sentence1,score\nx,1\n", UsageError, "is no file of pairs; wanted .csv"),
        ("a.csv", "", UsageError, "is no file of pairs"),
        ("a.csv", "sentence1,sentence2,score\nx,y,high\n", DataError, "line 2 holds"),
        ("a.csv", "sentence1,sentence2,score\nx,y,nan\n", DataError, "line 2 holds"),
        ("a.csv", "sentence1,sentence2,score\nx,y\n", DataError, "line 2 holds"),
        ("a.csv", "sentence1,sentence2,score\nx,y,1\n", DataError, "1 pairs that tell nothing"),
        ("a.csv", "sentence1,sentence2,score\n" + "x,y,1\n" * 20, DataError, "20 pairs that tell nothing"),
        ("a.jsonl", "[1]\n", DataError, "line 1 holds a list"),
        ("a.jsonl", "{\n", DataError, "line 1 is not JSON"),
        ("a.jsonl", "[" * 100_000 + "\n", DataError, "line 1 is not JSON"),
        ("a.csv", 'sentence1,sentence2,score\nx,"y,1\n', DataError, "line 2: .*correct its quotes"),
    ],
)
def test_files_without_pairs_are_refused(
    tmp_path: Path, name: str, content: str, error: type[Exception], message: str
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(error, match=message):
        read_pairs(tmp_path / name)
    with pytest.raises(UsageError, match="is not a file"):
        read_pairs(tmp_path / "absent.csv")
    (tmp_path / "latin.csv").write_bytes(b"\xff\xfe,")
    with pytest.raises(DataError, match="not UTF-8"):
        read_pairs(tmp_path / "latin.csv")


def test_line_separators_inside_sentences_do_not_end_a_line(tmp_path: Path) -> None:
    odd = "one\u2028two\x85three"
    for name, head, row in (
        ("a.jsonl", "", json.dumps({"sentence1": odd, "sentence2": "b", "score": 0}, ensure_ascii=False)),
        ("a.tsv", "sentence1\tsentence2\tscore\n", f"{odd}\tb\t0"),
        ("a.csv", "sentence1,sentence2,score\n", f"{odd},b,0"),
    ):
        others = {"jsonl": ['{"sentence1": "a", "sentence2": "b", "score": 1}'], "tsv": ["a\tb\t1"], "csv": ["a,b,1"]}
        rows = [row, *others[name.split(".")[1]] * 12]
        (tmp_path / name).write_text(head + "\n".join(rows) + "\n", "utf-8")
        pairs = read_pairs(tmp_path / name)
        assert (pairs.first[0], len(pairs.first)) == (odd, 13)
    (tmp_path / "b.csv").write_text('sentence1,sentence2,score\n"line one\nline two",b,0\n' + "a,b,1\n" * 12, "utf-8")
    assert read_pairs(tmp_path / "b.csv").first[0] == "line one\nline two"


def test_rules_use_training_spectrum_and_number_of_sentences() -> None:
    moments = Moments.of(anisotropic(2000, 20))
    plain = choose_by_rules(moments, 5)
    assert plain.spec == WhiteningSpec("pca", 5, shrinkage=0.5)
    assert plain.why == "the model was not trained for similarity"
    other = choose_by_rules(moments, 5, other_layers_tuned=True)
    assert other.spec == plain.spec
    assert other.why == "these layers were not trained for similarity"
    assert choose_by_rules(moments, None, softness=0.3).spec == WhiteningSpec(shrinkage=0.3)
    few = choose_by_rules(Moments.of(anisotropic(50, 20)), None)
    assert few.spec is not None
    assert few.spec.shrinkage == max(0.5, round(oas(Moments.of(anisotropic(50, 20))), 2))
    assert few.why.endswith("and the sentences are few")
    with pytest.raises(UsageError, match="1 sentences tell nothing"):
        choose_by_rules(Moments.of(anisotropic(1, 20)), None)
    assert choose_by_rules(Moments.of(anisotropic(50, 20)), None, 0.3).spec == WhiteningSpec(shrinkage=0.3)
    even = choose_by_rules(Moments.of(np.random.default_rng(0).normal(size=(2000, 20))), None)
    assert even.spec == WhiteningSpec(beta=0.0)
    assert even.why == "the vectors are nearly even without it"
    tuned = choose_by_rules(moments, 5, tuned=True)
    assert tuned.spec == WhiteningSpec("pca", 5, 0.0)
    assert tuned.why == "the model was trained for similarity, which whitening undoes"


@pytest.mark.parametrize(
    ("weights", "kind"),
    [("raw", "none"), ("centred", "centre"), ("whitened", "full"), ("soft", "soft"), ("removed", "all-but-the-top")],
)
def test_pairs_choose_the_candidate_that_made_the_scores(weights: str, kind: str) -> None:
    """Scores are the cosines of one of the candidates, which therefore wins with a correlation of 1."""
    vectors = anisotropic(3000, 16)
    moments = Moments.of(vectors)
    first, second = vectors[:400], vectors[400:800]

    def fit(spec: WhiteningSpec | None) -> WhiteningMap | None:
        return None if spec is None else fit_map(moments, spec)

    spec = {
        "raw": None,
        "centred": WhiteningSpec(beta=0.0),
        "whitened": WhiteningSpec(),
        "soft": WhiteningSpec(shrinkage=0.3),
        "removed": WhiteningSpec(beta=0.0, common_components=2),
    }[weights]
    fitted = None if spec is None else fit_map(moments, spec)
    mapped = [x if fitted is None else (x - fitted.mean) @ fitted.weight for x in (first, second)]
    norms = [np.linalg.norm(x, axis=1) for x in mapped]
    scores = (mapped[0] * mapped[1]).sum(axis=1) / (norms[0] * norms[1])
    choice = choose_by_pairs(fit, first, second, scores, None, "none")
    best = max(choice.candidates, key=lambda candidate: candidate.spearman)
    assert (best.whitening, best.dimension) == (kind, 14 if kind == "all-but-the-top" else 16)
    assert best.spearman == pytest.approx(1)
    assert choice.spec == spec
    assert f"best of {len(choice.candidates)} on 400 pairs (Spearman 100.00" in choice.why
    tried = {(c.whitening, c.beta, c.shrinkage, c.common_components, c.dimension) for c in choice.candidates}
    assert len(tried) == len(choice.candidates)


def test_requested_dimension_is_kept() -> None:
    vectors = anisotropic(3000, 16)
    moments, scores = Moments.of(vectors), np.random.default_rng(0).normal(size=300)
    choice = choose_by_pairs(lambda spec: fit_map(moments, spec), vectors[:300], vectors[300:600], scores, 5, "oas")
    assert {(candidate.whitening, candidate.dimension) for candidate in choice.candidates} == {
        ("centre", 5), ("all-but-the-top", 5), ("soft", 5), ("partial", 5),
    }  # fmt: skip
    assert choice.spec is not None
    assert (choice.spec.dimension, choice.spec.shrinkage) == (5, "oas")
    choice = choose_by_pairs(lambda spec: fit_map(moments, spec), vectors[:300], vectors[300:600], scores, 16)
    assert {candidate.dimension for candidate in choice.candidates} == {16}
    assert "all-but-the-top" not in {candidate.whitening for candidate in choice.candidates}


@pytest.mark.parametrize(
    "unused", [("--corpus", "absent.txt"), ("--max-sentences", "50"), ("--whitening", "auto", "--shrinkage", "oas")]
)
def test_what_no_whitening_needs_is_refused(tmp_path: Path, unused: tuple[str, ...]) -> None:
    error = refused("export", "minilm", "--layers", "1,6", *unused, "--out", tmp_path / "b")
    assert "was given, but nothing is fitted: the model was trained for similarity" in error


def pairs_file(folder: Path) -> Path:
    texts = sentences(120)
    rows = zip(texts[:60], texts[60:], range(60), strict=True)
    path = folder / "dev.jsonl"
    path.write_text(
        "".join(json.dumps({"sentence1": a, "sentence2": b, "score": n % 7}) + "\n" for a, b, n in rows), "utf-8"
    )
    return path


def test_command_records_its_candidates_in_the_manifest(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    arguments = (checkpoint("bert"), "--corpus", corpus_file, "--whitening", "auto", "--out", tmp_path / "b")
    result = ok("export", *arguments, "--dev", pairs_file(tmp_path))
    with Encoder(tmp_path / "b") as encoder:
        choice = encoder.manifest.choice
        assert choice is not None
        assert choice.why in result.stderr
        assert choice.pairs is not None
        assert choice.pairs.sentences == 60
        best = max(choice.candidates, key=lambda candidate: candidate.spearman)
        assert encoder.dimension == best.dimension
        assert len({(c.whitening, c.shrinkage, c.dimension) for c in choice.candidates}) > 20
        assert (encoder.manifest.whitening.beta if encoder.manifest.whitening else None) == best.beta
        dev = [json.loads(line) for line in pairs_file(tmp_path).read_text("utf-8").splitlines()]
        vectors = [
            encoder.encode([row[key] for row in dev], normalize_embeddings=True) for key in ("sentence1", "sentence2")
        ]
        cosines = (vectors[0] * vectors[1]).sum(axis=1)
        assert spearmanr(cosines, [row["score"] for row in dev]).statistic == pytest.approx(best.spearman, abs=1e-3)


def test_command_chooses_by_rules_without_pairs(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    result = ok(
        "export", checkpoint("bert"), "--corpus", corpus_file, "--whitening", "auto", "--out", tmp_path / "b", "--json"
    )
    manifest = json.loads(result.stdout)["manifest"]
    assert manifest["choice"]["why"] == "the model was not trained for similarity"
    assert manifest["whitening"]["method"] == "pca"


def test_fine_tuned_checkpoint_is_not_whitened(tmp_path: Path) -> None:
    result = ok("export", "minilm", "--layers", "6", "--whitening", "auto", "--out", tmp_path / "b", "--json")
    manifest = json.loads(result.stdout)["manifest"]
    assert manifest["whitening"] is None
    assert manifest["choice"]["why"] == "the model was trained for similarity, which whitening undoes"
    assert "chosen   not whitened: the model was trained for similarity" in result.stderr
    assert "fitting" not in result.stderr


def test_lower_layers_of_a_fine_tuned_checkpoint_are_said_to_be_others(corpus_file: Path, tmp_path: Path) -> None:
    why = "these layers were not trained for similarity"
    result = ok("export", "minilm", "--layers", "0,1", "--corpus", corpus_file, "--out", tmp_path / "b", "--json")
    assert why in json.loads(result.stdout)["manifest"]["choice"]["why"]
    again = ok("refit", tmp_path / "b", "--corpus", corpus_file, "--out", tmp_path / "c", "--json")
    assert why in json.loads(again.stdout)["manifest"]["choice"]["why"]


def test_fine_tuned_checkpoint_is_centred_and_rotated_if_fewer_dimensions_are_wanted(
    corpus_file: Path, tmp_path: Path
) -> None:
    result = ok(
        "export", "minilm", "--layers", "6", "--dim", "64", "--corpus", corpus_file, "--out", tmp_path / "c", "--json"
    )
    manifest = json.loads(result.stdout)["manifest"]
    assert (manifest["whitening"]["beta"], manifest["dimension"]) == (0.0, 64)
    assert "chosen   centred only: the model was trained for similarity" in result.stderr
