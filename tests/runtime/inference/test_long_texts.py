"""Test that a part of a long text gives the tokens of the whole text."""

import random
import re
import tracemalloc
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from support.corpus import training_text
from support.nasty_texts import NASTY
from support.vocabularies import byte_bpe, wordpiece
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.inference import long_texts, tokenizer_parts
from whiten_runtime.inference.long_texts import places_of
from whiten_runtime.inference.tokenizer import Tokenizer as OurTokenizer

LIMITS = (3, 8, 25)

PLAIN = [letter for letter in map(chr, range(0xD800)) if re.fullmatch(f"[{long_texts._PLAIN}]", letter)]
WORDS = [
    *("the", "The", "don't", "I'LL", "isn't", "'s", "1,024", "3.14", "U.S.A.", "x1y2", '{"a":', "//", "ab'", "-", "_"),
    *("[MASK]", "[m", "<mask>", "</s>", "wordy", "th", "<mark>", "...", "!", "''", "``", "。", "、", "「"),
    *("x" * 90, "x" * 101, "q1" * 150, "天気", "ですね", "가나다", "กขค", "e\u0301", "\u0301", "中\u3099", "ＡＢ", "½"),
]
GAPS = (" ", " ", " ", "", "", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", " \u0301", "\u200b", " \uff9e")
PIECES = st.one_of(
    st.sampled_from(WORDS), st.sampled_from(WORDS), st.sampled_from(NASTY), st.sampled_from(PLAIN), st.text(max_size=4)
)
TEXTS = st.lists(st.tuples(PIECES, st.sampled_from(GAPS)), max_size=60).map(
    lambda pairs: "".join(map("".join, pairs)).encode("utf-8", "replace").decode()
)


@cache
def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<pad>", "<unk>", "[MASK]"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return Tokenizer.from_str(tokenizer.to_str())


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(wordpiece().get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(tokenizer_parts.WORDS), "removed", invert=True)
    return tokenizer


def by_pattern() -> Tokenizer:
    """Split as Llama 3 does."""
    tokenizer = byte_bpe()
    split = pre_tokenizers.Split(Regex(tokenizer_parts.WITH_BLANK % "{1,3}"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return tokenizer


def with_tokens(make: Callable[[], Tokenizer], normalized: bool) -> Tokenizer:
    tokenizer = make()
    tokenizer.add_tokens([AddedToken("wordy", normalized=normalized), AddedToken("x1y", normalized=normalized)])
    tokenizer.add_tokens([AddedToken("<mark>", lstrip=True, rstrip=True), AddedToken("   ", normalized=normalized)])
    tokenizer.add_tokens([AddedToken("th", single_word=True, normalized=normalized)])
    return tokenizer


def modern() -> Tokenizer:
    tokenizer = byte_bpe()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def spaced() -> Tokenizer:
    tokenizer = byte_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "wordpiece cased": lambda: wordpiece(lowercase=False),
    "wordpiece with tokens": lambda: with_tokens(wordpiece, True),
    "byte bpe": byte_bpe,
    "byte bpe with form C": modern,
    "byte bpe with tokens": lambda: with_tokens(modern, True),
    "byte bpe with other tokens": lambda: with_tokens(byte_bpe, False),
    "byte bpe with a space": spaced,
    "byte bpe by pattern": by_pattern,
    "unigram": unigram,
    "words": words,
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    for name, make in KINDS.items():
        make().save(str(folder / f"{name}.json"))
    return {name: folder / f"{name}.json" for name in KINDS}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=250)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(get_args(Side)),
    st.sampled_from(LIMITS),
    st.lists(TEXTS, min_size=1, max_size=4),
)
def test_part_gives_the_tokens_of_the_whole_text(
    kinds: dict[str, Path], kind: str, side: Side, limit: int, texts: list[str]
) -> None:
    ours = OurTokenizer(kinds[kind], limit, side)
    whole, enough = ours.tokenize(texts), ours.tokenize_enough(texts)
    assert list(map(ours.cut, enough)) == list(map(ours.cut, whole))
    assert [len(row) > limit for row in enough] == [len(row) > limit for row in whole]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", get_args(Side))
def test_nasty_texts_beside_every_word(kinds: dict[str, Path], kind: str, side: Side) -> None:
    ours = OurTokenizer(kinds[kind], 8, side)
    filled = ["".join(f"{nasty}{gap}{word} " for nasty in NASTY) for word, gap in product(WORDS[:40], ("", " "))]
    texts = [text[start:] for text in filled for start in (0, 700)]
    whole, enough = ours.tokenize(texts), ours.tokenize_enough(texts)
    assert list(map(ours.cut, enough)) == list(map(ours.cut, whole))
    assert sum(map(len, enough)) < sum(map(len, whole)) / 2


SENTENCE = "The quick brown fox jumps over the lazy dog, and 12 others don't mind. "
LONG = {
    "blanks": SENTENCE,
    "marks": "abc,defg;hij:klmno.",
    "one word": "abcdefghij",
    "chinese": "今天天气很好",
}
FAST = [
    *product(("wordpiece", "byte bpe", "byte bpe by pattern", "unigram", "words"), ("blanks",)),
    *product(("wordpiece",), ("one word", "chinese")),
    *product(("byte bpe", "byte bpe with form C", "byte bpe by pattern"), ("marks",)),
]


@pytest.mark.parametrize(("kind", "shape"), FAST)
@pytest.mark.parametrize("side", get_args(Side))
def test_work_and_memory_do_not_grow_with_a_text(
    kinds: dict[str, Path], kind: str, shape: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = OurTokenizer(kinds[kind], 512, side)
    text = LONG[shape] * (10**6 // len(LONG[shape]))
    ours.tokenize_enough([text])
    read: list[int] = []
    tokenize = ours.tokenize
    monkeypatch.setattr(ours, "tokenize", lambda texts: (read.extend(map(len, texts)), tokenize(texts))[1])
    tracemalloc.start()
    (row,) = ours.tokenize_enough([text])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(row) < 5_000
    assert 0 < sum(read) < 100_000
    assert most < 20e6


@pytest.mark.parametrize(
    "change",
    [
        lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.Split(Regex("[^,]+"), "isolated")),
        lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.Metaspace(split=False)),
        lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False)),
        lambda made: setattr(made, "normalizer", normalizers.Replace(" ", "_")),
        lambda made: setattr(made, "normalizer", normalizers.Replace(Regex("a b"), "c")),
        lambda made: setattr(made, "normalizer", normalizers.Prepend("x")),
        lambda made: made.add_tokens(["two words"]),
        lambda made: made.add_tokens([AddedToken("word", rstrip=True)]),
        lambda made: made.add_tokens([" "]),
    ],
)
def test_kinds_that_are_not_known_are_tokenised_whole(tmp_path: Path, change: Callable[[Tokenizer], object]) -> None:
    made = byte_bpe()
    change(made)
    assert places_of(made) is None
    made.save(str(tmp_path / "tokenizer.json"))
    ours = OurTokenizer(tmp_path / "tokenizer.json", 8)
    texts = [SENTENCE * 20, "a b two words word x" * 20]
    assert ours.tokenize_enough(texts) == ours.tokenize(texts)


def test_blanks_that_the_normaliser_removes_are_no_places() -> None:
    """A table of SentencePiece may do so; here, a normaliser of the same kind is put in its place."""
    places = places_of(spaced())
    assert places is not None
    joined = long_texts.Places(places.pattern, normalizer=normalizers.Replace(" ", ""))
    assert joined.part(SENTENCE * 3, 100, "right") is None
    assert places.part(SENTENCE * 3, 100, "right") is not None


SPLITTERS = {
    "mark of the first word": (unigram, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "mark of no first word": (unigram, pre_tokenizers.Metaspace(prepend_scheme="never")),
    "mark of the first piece": (
        unigram,
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    ),
    "bytes": (byte_bpe, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "mark of every first word": (unigram, pre_tokenizers.Metaspace()),
    "words": (words, words().pre_tokenizer),
}


@pytest.mark.parametrize("name", SPLITTERS)
def test_the_end_of_a_text_keeps_its_first_blank_where_a_normaliser_strips_it(name: str, tmp_path: Path) -> None:
    make, splitter = SPLITTERS[name]
    made = Tokenizer.from_str(make().to_str())
    made.normalizer, made.pre_tokenizer = normalizers.Strip(), splitter
    made.save(str(tmp_path / "tokenizer.json"))
    chosen = random.Random(0)
    texts = [" ".join(chosen.choices(["internationalisation", "unquestionably", "of"], k=50)) for _ in range(40)]
    for limit in range(3, 16):
        ours = OurTokenizer(tmp_path / "tokenizer.json", limit, "left")
        whole, enough = ours.tokenize(texts), ours.tokenize_enough(texts)
        assert list(map(ours.cut, enough)) == list(map(ours.cut, whole))
    assert (sum(map(len, enough)) < sum(map(len, whole))) == (name in ("mark of every first word", "words"))


def test_long_words_keep_their_ends() -> None:
    places = places_of(wordpiece())
    assert places is not None
    assert places.longest_word is not None
    kept = places.longest_word + 1
    text = f"é{'a' * 5000}é {'b' * kept} {'c' * (2 * kept)}-{'d' * (2 * kept + 1)}"
    assert places.shortened(text) == f"é{'a' * 2 * kept}é {'b' * kept} {'c' * (2 * kept)}-{'d' * (2 * kept)}"
    assert places_of(with_tokens(wordpiece, True)).longest_word is None
