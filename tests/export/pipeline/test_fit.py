"""Test `--whitening auto`: by rules, and by pairs with scores."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from support.cli import ok, refused
from support.vectors import anisotropic
from whiten import DataError, Encoder, UsageError
from whiten_export.fit import is_multilingual, warn_of_rank
from whiten_runtime.files.pairs import read_pairs
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import choose_by_pairs, choose_by_rules
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map
from whiten_whitening.moments import Moments, oas
from whiten_whitening.similarity import cosines, spearman, spearman_error

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
ODD = "one\u2028two\x85three"
"""A sentence with separators of lines that do not end one."""


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "sts.csv"])
def test_pairs_are_read_from_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    path, rows = tmp_path / f"pairs.{kind}", [(ODD, "b", 0.0), *ROWS]
    lines = {
        "csv": ["score,sentence1,sentence2", *(f'{s},"{a}","{b}"' for a, b, s in rows)],
        "tsv": ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{s}" for a, b, s in rows)],
        "jsonl": [json.dumps({"sentence1": a, "sentence2": b, "score": s}, ensure_ascii=False) for a, b, s in rows],
        "sts.csv": [f"main\tnews\t2012\t{n}\t{s}\t{a}\t{b}" for n, (a, b, s) in enumerate(rows)],
    }[kind]
    path.write_text("\n".join(lines) + "\n\n", "utf-8")
    pairs = read_pairs(path)
    assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == rows
    assert (pairs.record.name, pairs.record.sentences) == (path.name, 13)


HEAD = "sentence1,sentence2,score\n"


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.csv", b"sentence1,score\nx,1\n", UsageError, "has 'sentence1', 'score' as header; wanted .csv"),
        ("a.csv", b"", UsageError, "has nothing as header; wanted .csv"),
        *(
            ("a.csv", f"{HEAD}{row}\n".encode(), DataError, "line 2 holds")
            for row in ("x,y,high", "x,y,nan", "x,y,1_0", "x,y,1e400", "x,y,\uff11", "x,y,\u0663.5", "x,y,")
        ),
        *(("a.csv", f"{HEAD}{row}\n".encode(), DataError, "columns; wanted 3") for row in ("x,y", "A man, a plan,y,3")),
        ("a.tsv", b"sentence1\tsentence2\tscore\nx\ty\tz\t1\n", DataError, "line 2 has 4 columns; wanted 3"),
        ("a.csv", b"sentence1,score,sentence2,sentence1\nx,1,y,z\n", UsageError, "has the column 'sentence1' twice"),
        *(
            ("a.jsonl", f'{{"sentence1": "x", "sentence2": "y", "score": {score}}}\n'.encode(), DataError, "line 1 ")
            for score in ("true", "null", "[1]", "1e400", '"1_0"', '"\uff11"', "1" + "0" * 400, "1" + "0" * 5000)
        ),
        ("a.csv", f"{HEAD}x,y,1\n".encode(), DataError, "1 pairs that tell nothing"),
        ("a.csv", (HEAD + "x,y,1\n" * 20).encode(), DataError, "20 pairs that tell nothing"),
        ("a.csv", f'{HEAD}x,"y,1\n'.encode(), DataError, "line 2: .*correct its quotes"),
        ("a.csv", b"\xff\xfe,", DataError, "not UTF-8"),
        ("a.jsonl", b"[1]\n", DataError, "line 1 holds a list"),
        ("a.jsonl", b"{\n", DataError, "line 1 is not JSON"),
        ("a.jsonl", b"[" * 100_000 + b"\n", DataError, "line 1 is not JSON"),
        ("a.csv", None, UsageError, "does not exist; wanted pairs with scores"),
    ],
)
def test_files_without_pairs_are_refused(
    tmp_path: Path, name: str, content: bytes | None, error: type[Exception], message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        read_pairs(tmp_path / name)


def test_a_quoted_sentence_may_have_lines(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(f'{HEAD}"line one\nline two",b,0\n' + "a,b,1\n" * 12, "utf-8")
    assert read_pairs(tmp_path / "b.csv").first[0] == "line one\nline two"


def test_rules_use_training_spectrum_and_number_of_sentences() -> None:
    moments = Moments.of(anisotropic(2000, 20))
    plain = choose_by_rules(moments, 5)
    assert plain.spec == WhiteningSpec("pca", 5, shrinkage=0.5)
    assert plain.why == "nothing says that the model was trained for similarity"
    other = choose_by_rules(moments, 5, other_layers_tuned=True)
    assert other.spec == plain.spec
    assert other.why == "these layers were not trained for similarity"
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


def fit_or_none(moments: Moments, spec: WhiteningSpec | None) -> WhiteningMap | None:
    return None if spec is None else fit_map(moments, spec)


@pytest.mark.parametrize(("pairs", "most"), [(10, 3), (100, 0), (400, 0)])
def test_noise_chooses_no_whitening(pairs: int, most: int) -> None:
    """Vectors are even already, and scores are their cosines with noise: no whitening can help."""
    others = 0
    for seed in range(10):
        generator = np.random.default_rng(seed)
        vectors = generator.standard_normal((2000, 16))
        moments = Moments.of(vectors)
        first, second = vectors[:pairs], vectors[pairs : 2 * pairs] + 0.5 * vectors[:pairs]
        scores = cosines(first, second) + 0.2 * generator.standard_normal(pairs)
        choice = choose_by_pairs(partial(fit_or_none, moments), first, second, scores, None)
        others += choice.spec is not None
        if choice.spec is None and "simplest" in choice.why:
            assert choice.why.startswith("the simplest within a standard error of the best of ")
            assert " ± " in choice.why.partition(", best ")[2]
    assert others <= most


@pytest.mark.parametrize("n", [50, 400])
def test_error_of_a_rank_correlation_is_that_of_new_draws(n: int) -> None:
    generator, values, errors = np.random.default_rng(0), [], []
    for _ in range(300):
        x = generator.standard_normal(n)
        y = x + generator.standard_normal(n)
        values.append(spearman(x, y))
        errors.append(spearman_error(x, y))
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)
    assert spearman_error(np.ones(n), np.arange(n)) == 0


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


def test_command_records_its_candidates_in_the_manifest(
    checkpoint: Callable[[str], Path], corpus_file: Path, dev_file: Path, tmp_path: Path
) -> None:
    arguments = (checkpoint("bert"), "--corpus", corpus_file, "--whitening", "auto", "--out", tmp_path / "b")
    result = ok("export", *arguments, "--dev", dev_file)
    with Encoder(tmp_path / "b") as encoder:
        choice = encoder.manifest.choice
        assert choice is not None
        assert choice.why in result.stderr
        assert choice.pairs is not None
        assert choice.pairs.sentences == 80
        highest = max(candidate.spearman for candidate in choice.candidates)
        value = round(100 * highest, 2)
        if "simplest" in choice.why:
            value = float(choice.why.partition("(Spearman ")[2].split(" ")[0])
            assert f", best {100 * highest:.2f} ± " in choice.why
        best = next(one for one in choice.candidates if round(100 * one.spearman, 2) == value)
        assert encoder.dimension == best.dimension
        assert "80 pairs are few to choose a whitening by, 200 or more are advised" in result.stderr
        assert len({(c.whitening, c.shrinkage, c.dimension) for c in choice.candidates}) > 20
        assert (encoder.manifest.whitening.beta if encoder.manifest.whitening else None) == best.beta
        dev = [json.loads(line) for line in dev_file.read_text("utf-8").splitlines()]
        vectors = [
            encoder.encode([row[key] for row in dev], normalize_embeddings=True) for key in ("sentence1", "sentence2")
        ]
        cosines = (vectors[0] * vectors[1]).sum(axis=1)
        assert spearmanr(cosines, [row["score"] for row in dev]).statistic == pytest.approx(best.spearman, abs=1e-3)


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


def vocabulary(words: list[str]) -> Tokenizer:
    return Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))


LATIN = [f"wort{n}é" for n in range(80)]


@pytest.mark.parametrize(
    ("others", "expected"),
    [([], False), (["слово"], False), ([f"слово{n}" for n in range(20)], True), ([f"今{n}" for n in range(30)], True)],
)
def test_share_of_other_scripts_decides(others: list[str], expected: bool) -> None:
    assert is_multilingual(vocabulary([*LATIN, *others]).to_str()) == expected


def test_bytes_of_other_scripts_are_decoded() -> None:
    def of_bytes(text: str) -> str:
        return ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]

    tokenizer = vocabulary([of_bytes(f"слово{n}") for n in range(40)] + LATIN)
    tokenizer.decoder = decoders.ByteLevel()
    assert is_multilingual(tokenizer.to_str())


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (WhiteningSpec(dimension=9), None),
        (WhiteningSpec(dimension=12), "directions: what a text has in the others is dropped, or damped"),
        (WhiteningSpec("zca"), "directions: what a text has in the others is dropped, or damped"),
        (WhiteningSpec(shrinkage=0.3), "directions: the others are whitened by a guess"),
        (WhiteningSpec(dimension=12, shrinkage=0.3), "3 of the 12 dimensions are any of the others: keep --dim 9"),
        (WhiteningSpec(beta=0), None),
        (WhiteningSpec(beta=0, dimension=12), "3 of the 12 dimensions are any of the others: keep --dim 9"),
    ],
)
def test_what_becomes_of_directions_that_the_corpus_lacks_is_said(spec: WhiteningSpec, told: str | None) -> None:
    said: list[str] = []
    report = Reporter()
    report.warn = said.append  # type: ignore[method-assign]
    fitted = fit_map(Moments.of(anisotropic(10, 16)), spec)
    warn_of_rank(fitted, "sentences", report)
    assert len(said) == (told is not None)
    assert (told or "") in "".join(said)
    new = anisotropic(30, 16, 1) - fitted.mean
    lost = np.linalg.matrix_rank(new @ fitted.weight, tol=1e-9) == 9
    assert lost == (spec.beta > 0 and spec.shrinkage == "none")
