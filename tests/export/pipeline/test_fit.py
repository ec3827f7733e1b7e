"""Test `--whitening auto`: by rules, and by pairs with scores."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from support.cli import ok, refused
from support.vectors import anisotropic
from whiten import Encoder
from whiten_export.fit import is_multilingual, warn_of_rank
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.moments import Moments

pytestmark = pytest.mark.slow


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
