"""Test word vectors: the words of a text and whether they are lower-cased, averages, SIF."""

import json
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD

from support.cli import ok, refused
from support.corpus import NASTY, sentences
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_export.sources.words import SPECIALS, _pattern, word_tokenizer
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.reporter import Reporter

WIDTH = 24
FINDING = regex.compile(_pattern(()))


def words_of(text: str) -> list[str]:
    """Split a text into words with another regular expression engine."""
    import unicodedata

    return FINDING.findall(unicodedata.normalize("NFC", text).lower())


@pytest.fixture(scope="module")
def words_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write words of the corpus, most frequent first, with random vectors that share a direction."""
    counts: dict[str, int] = {}
    for sentence in sentences(3000):
        for word in words_of(sentence):
            counts[word] = counts.get(word, 0) + 1
    generator = np.random.default_rng(0)
    words = sorted(counts, key=lambda word: (-counts[word], word))[:1500]
    rows = generator.normal(size=(len(words), WIDTH)) + 2 * generator.normal(size=WIDTH)
    folder = tmp_path_factory.mktemp("words")
    lines = (f"{word} {' '.join(f'{x:.5f}' for x in row)}\n" for word, row in zip(words, rows, strict=True))
    (folder / "glove.24d.txt").write_text("".join(lines), "utf-8")
    return folder / "glove.24d.txt"


def averages(path: Path, texts: list[str], weights: dict[str, float] | None) -> np.ndarray:
    """Average word by word, from the file."""
    lines = (line.split(" ") for line in path.read_text("utf-8").splitlines())
    table = {fields[0]: np.array(fields[1:], np.float32).astype(np.float64) for fields in lines}
    rows = []
    for text in texts:
        known = [word for word in words_of(text) if word in table]
        vectors = [table[word] * (weights[word] if weights else 1) for word in known]
        rows.append(sum(vectors, np.zeros(WIDTH)) / max(len(known), 1))
    return np.stack(rows)


TEXTS = ["", "zzzzz qqqqq", "the", *sentences(60), "don't isn't we're John's 1,024.5 naïve CAFÉ", "😀 the 日本"]


def test_vectors_are_averages_of_word_vectors(words_file: Path, tmp_path: Path) -> None:
    with Encoder(export_bundle(Recipe(str(words_file), whitening=None), tmp_path / "b").path) as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), averages(words_file, TEXTS, None), atol=1e-5)
        assert encoder.manifest.source.model == "glove"
        assert (encoder.manifest.source.model_type, encoder.manifest.layers) == ("words", (0,))


def test_sif_equals_the_algorithm_of_the_paper(words_file: Path, tmp_path: Path) -> None:
    """Compare with weighted averages minus their projection on the first right singular vector, by scikit-learn."""
    known = [line.split(" ")[0] for line in words_file.read_text("utf-8").splitlines()]
    harmonic = sum(1 / rank for rank in range(1, len(known) + 1))
    shares = {word: 1 / rank / harmonic for rank, word in enumerate(known, 1)}
    weights = {word: 1e-3 / (1e-3 + shares[word]) for word in known}
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sentences(500)))
    fitted = averages(words_file, sentences(500), weights)
    component = TruncatedSVD(1, algorithm="arpack").fit(fitted).components_
    want = averages(words_file, TEXTS, weights)
    want -= want @ component.T @ component
    sif = ("--pooling", "sif", "--whitening", "none", "--corpus", corpus, "--max-sentences", "all")
    ok("export", words_file, *sif, "--out", tmp_path / "b")
    with Encoder(tmp_path / "b") as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), want, atol=1e-5)
        assert encoder.manifest.whitening is not None
        assert (encoder.manifest.whitening.method, encoder.manifest.whitening.common_components) == ("none", 1)
        assert GATES["fp32"].passes(encoder.verify())


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_whitened_sif_has_identity_covariance(words_file: Path, tmp_path: Path, precision: str) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sentences(800)))
    out = tmp_path / "b"
    sif = ("--pooling", "sif", "--whitening", "pca", "--corpus", corpus, "--max-sentences", "all")
    result = ok("export", words_file, *sif, "--precision", precision, "--out", out, "--json")
    assert json.loads(result.stdout)["manifest"]["whitening"]["rank"] == WIDTH - 1
    with Encoder(out) as encoder:
        covariance = np.cov(encoder.encode(sentences(800)).T.astype(np.float64))
    np.testing.assert_allclose(covariance[: WIDTH - 1, : WIDTH - 1], np.eye(WIDTH - 1), atol=0.03)
    np.testing.assert_allclose(covariance[-1], 0, atol=1e-3)


def test_tokenizer_splits_like_another_regex_engine(words_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(
        export_bundle(Recipe(str(words_file), whitening=None), tmp_path / "b").path / "tokenizer.json", 9
    )
    known = {line.split(" ")[0]: index for index, line in enumerate(words_file.read_text("utf-8").splitlines(), 2)}

    def check(text: str) -> None:
        assert tokenizer.tokenize([text])[0] == [known.get(word, 1) for word in words_of(text)], text

    for text in (*NASTY, *sentences(300)):
        check(text)

    @settings(max_examples=300, deadline=None)
    @given(st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=("Cs", "Cn", "Co"))))
    def anything(text: str) -> None:
        check(text)

    anything()


def test_clitics_and_numbers_are_split() -> None:
    assert words_of("Don't he's 1,024.5 a_b e-mail, U.S.") == [
        *("do", "n't", "he", "'s", "1,024.5", "a_b", "e", "-", "mail", ",", "u", ".", "s", "."),
    ]


@pytest.mark.parametrize(
    ("options", "message"), [(["--pooling", "cls"], "mean or sif"), (["--layers", "1"], "layer 1")]
)
def test_errors_leave_no_bundle(words_file: Path, tmp_path: Path, options: list[str], message: str) -> None:
    assert message in refused("export", words_file, *options, "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()


LOWER = [f"word{number}" for number in range(490)]
NAMES = [f"Name{number}" for number in range(11)]  # 2 % of 500 words is 10
UNKNOWN = "<|unknown|>"


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        (["日本", "123", "."], "日本", ["日本"]),
        ([*LOWER, "iPhone", "iphone"], "Word7 WORD7 word7 iPhone", ["word7", "word7", "word7", "iphone"]),
        ([*LOWER, "<UNK>", "iPhone", "nasa", "NASA", "Ünı"], "iPhone NASA Ünı", [UNKNOWN, "nasa", UNKNOWN]),
        ([*LOWER, *NAMES[:10]], "Word7 Name7", ["word7", UNKNOWN]),
        ([*LOWER, *NAMES], "Word7 Name7", [UNKNOWN, "Name7"]),
        # scripts without case do not hide the casing of others
        (["the", "The", *(chr(0x4E00 + number) for number in range(500))], "The the 一", ["The", "the", "一"]),
    ],
    ids=range(6),
)
def test_texts_are_lower_cased_where_nearly_all_words_are(words: list[str], text: str, found: list[str]) -> None:
    (ids,) = word_tokenizer(words, Reporter()).own_ids([text], 99)
    assert [(*SPECIALS, *words)[number] for number in ids] == found


FRENCH = ["l'", "eau", "l", "'", "d'", "qu'", "il", "n'", "a", "pas", "argent", "c’", "est", "été", "'s", "n't", "do"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("l'eau", ["l'", "eau"]),
        ("L’été d'argent", ["l'", "été", "d'", "argent"]),
        ("qu'il n'a pas", ["qu'", "il", "n'", "a", "pas"]),
        ("avril'eau", [UNKNOWN, "'", "eau"]),
        ("l' l's", ["l", "'", "l", "'s"]),
        ("été’l’eau", ["été", UNKNOWN, "l'", "eau"]),
    ],
)
def test_elided_words_of_the_file_are_found_with_either_apostrophe(text: str, found: list[str]) -> None:
    (ids,) = word_tokenizer(FRENCH, Reporter()).own_ids([text], 99)
    assert [(*SPECIALS, *FRENCH)[number] for number in ids] == found
