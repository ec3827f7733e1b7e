"""Test that ids that are looked up chunk by chunk are those of the tokenizer itself."""

import tracemalloc
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from support.corpus import NASTY
from support.vocabularies import wordpiece
from whiten_runtime.inference import tokenizer as word_cache
from whiten_runtime.inference.tokenizer import Tokenizer as OurTokenizer
from whiten_runtime.inference.tokenizer import WordCache, encode_chunks

SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()] + ["\u180e", "\u200b", "\ufeff"]
CONTROLS = ["\0", "\x07", "\x1b", "\x7f", "\x9f", "\xad", "\u200d", "\u202e", "\u2060", "\ufffd", "\ue000", "\u0378"]
MARKS = [chr(code) for code in (0x300, 0x301, 0x308, 0x323, 0x345, 0x5B0, 0x94D, 0x3099, 0x20DD, 0x1D165)]
PIECES = [
    *("the", "The", "THE", "caf\xe9", "cafe\u0301", "unbelievable", "don't", "x" * 99, "x" * 100, "x" * 101, "é" * 60),
    *("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "[mask]", "[M\u00c1SK]", "<mark>", "<MARK>", "wordy", "WORDY"),
    *("中", "文字", "中a", "か\u3099", "한국", "\u1112\u1161\u11ab", "👩\u200d👧", "🇩🇪", "İ", "ẞ", "Σ", "##ing", "ﬁ"),
    *("!", "a.b@c", "…", "—", "\u3002", "$", "`", "\u0e19\u0e49\u0e33", "\u0660", "𝐌", "ﷺ"),
    *NASTY,
]
ALPHABET = st.one_of(
    st.sampled_from(PIECES),
    st.sampled_from([" ", " ", "  ", "\t", "\n", "\r\n", *SPACES]),
    st.sampled_from(CONTROLS + MARKS),
    st.text(max_size=6),
)
TEXTS = st.lists(st.lists(ALPHABET, max_size=20).map("".join).filter(lambda text: _encodable(text)), max_size=6)


def _encodable(text: str) -> bool:
    return not any(unicodedata.category(letter) == "Cs" for letter in text)


def _kinds() -> list[Tokenizer]:
    """Vocabularies of every normaliser's options, with added tokens of every flag, short words and three templates."""
    found = []
    for clean, chinese, accents, lower in product((True, False), (True, False), (None, True, False), (True, False)):
        tokenizer = wordpiece(lowercase=lower)
        tokenizer.normalizer = normalizers.BertNormalizer(clean, chinese, accents, lower)
        found.append(tokenizer)
    for index, flags in enumerate(product((True, False), repeat=4)):
        single, left, right, normal = flags
        tokenizer = wordpiece()
        options = {"single_word": single, "lstrip": left, "rstrip": right, "normalized": normal}
        tokenizer.add_tokens([AddedToken(token, **options) for token in ("[MASK]", "<mark>", "wordy", "-", "[m")])
        tokenizer.add_special_tokens([AddedToken("th", special=True, **options)] if index % 2 else [])
        found.append(tokenizer)
    short = wordpiece()
    short.model = models.WordPiece(short.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=3)
    bare, roberta = wordpiece(), wordpiece()
    bare.post_processor = None
    roberta.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    bert = wordpiece()
    bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return [*found, short, bare, roberta, bert]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[OurTokenizer, Tokenizer]]:
    """Our tokenizer and the backend's, of each kind; ours remember what they have seen in all examples."""
    folder = tmp_path_factory.mktemp("kinds")
    made = []
    for index, tokenizer in enumerate(_kinds()):
        file = folder / f"{index}.json"
        tokenizer.save(str(file))  # and read again: before tokenizers 0.23.1, tokens added twice differ in memory
        made.append((OurTokenizer(file, 50), Tokenizer.from_file(str(file))))
    assert all(ours._words is not None for ours, _ in made)
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(TEXTS, st.data())
def test_ids_are_those_of_the_tokenizer(
    pairs: list[tuple[OurTokenizer, Tokenizer]], texts: list[str], data: st.DataObject
) -> None:
    ours, backend = data.draw(st.sampled_from(pairs))
    want = [backend.encode(text).ids for text in texts]
    assert ours.tokenize(texts) == want
    assert ours.tokenize(texts) == want
    assert [ours.tokenize([text])[0] for text in texts] == want


def test_ids_of_nasty_texts_are_those_of_the_tokenizer(pairs: list[tuple[OurTokenizer, Tokenizer]]) -> None:
    beside = (" ".join(pair) for pair in product(PIECES, ("[MASK]", "中 wordy", "\u0301x")))
    texts = [*NASTY, *beside, *map("x".join, product(SPACES, "ab"))]
    for ours, backend in pairs:
        assert ours.tokenize(texts) == [backend.encode(text).ids for text in texts]


def test_every_letter_between_two_words(pairs: list[tuple[OurTokenizer, Tokenizer]]) -> None:
    """White space that the normaliser removes joins what it separates; marks belong to what is before them."""
    letters = [chr(code) for code in (*range(0x3100), *range(0x3100, 0xD800, 29), *range(0xE000, 0x20000, 29))]
    texts = [f"the{letter}a{letter} {letter}b" for letter in letters]
    for ours, backend in (pairs[0], pairs[9]):
        assert ours.tokenize(texts) == [encoding.ids for encoding in backend.encode_batch_fast(texts)]


def test_ids_of_public_texts_are_those_of_the_tokenizer(public_data: Path, minilm_checkpoint: Path) -> None:
    path = minilm_checkpoint / "tokenizer.json"
    ours, backend = OurTokenizer(path, 256), Tokenizer.from_file(str(path))
    backend.no_padding()
    backend.no_truncation()
    files = sorted(file for file in public_data.rglob("*") if file.is_file() and file.suffix != ".md")
    texts = [line for file in files for line in file.read_text("utf-8", "replace").splitlines()[:600]]
    assert len(texts) > 10_000
    want = [encoding.ids for encoding in backend.encode_batch_fast(texts)]
    assert ours.tokenize(texts) == want == ours.tokenize(texts)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: setattr(made, "normalizer", normalizers.Sequence([normalizers.BertNormalizer()])),
        lambda made: setattr(made, "normalizer", normalizers.Lowercase()),
        lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda made: setattr(made, "model", models.WordLevel(made.get_vocab(), unk_token="[UNK]")),
        lambda made: setattr(made, "post_processor", processors.ByteLevel()),
        lambda made: setattr(made, "post_processor", processors.TemplateProcessing("$A $A", None, [])),
        lambda made: setattr(
            made,
            "post_processor",
            processors.TemplateProcessing("[CLS] $A [SEP] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)]),
        ),
        lambda made: made.add_tokens(["two words"]),
        lambda made: made.add_tokens(["中"]),
        lambda made: made.add_tokens(["tab\t"]),
    ],
)
def test_other_tokenizers_are_left_alone(tmp_path: Path, change: Callable[[Tokenizer], object]) -> None:
    made = wordpiece()
    change(made)
    made.save(str(tmp_path / "tokenizer.json"))
    ours = OurTokenizer(tmp_path / "tokenizer.json", 50)
    texts = [*PIECES, "two words", "a 中 b"]
    assert ours.tokenize(texts) == [made.encode(text).ids for text in texts]


def test_added_tokens_that_swallow_blanks_are_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their offsets reach beyond their chunk."""
    made = wordpiece()
    made.add_special_tokens([AddedToken("<mark>", lstrip=True, rstrip=True, special=True)])
    alone = []
    one_by_one = word_cache._one_by_one
    monkeypatch.setattr(word_cache, "_one_by_one", lambda *both: alone.append(both[1]) or one_by_one(*both))
    chunks = ["the", "<mark>", "a"]
    assert encode_chunks(made, chunks) == {chunk: tuple(made.encode(chunk).ids[1:-1]) for chunk in chunks}
    assert alone == [chunks]


def test_memory_of_the_cache_is_at_most_its_limit() -> None:
    made, limit = wordpiece(), 1 << 20
    cache = WordCache(made, [2], [3], limit)
    tracemalloc.start()
    for number in range(10**6, 10**6 + 20_000, 10):
        cache.tokenize([f"word{number + last}" for last in range(10)])
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now <= limit
    assert cache.tokenize(["", "the"]) == [made.encode(text).ids for text in ("", "the")]


def test_threads_share_a_cache_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wordpiece()
    tokenizer = WordCache(made, [2], [3], 20_000)
    texts = [f"the word {number % 300} of{number % 7} a text" for number in range(2_000)]
    want = [made.encode(text).ids for text in texts]
    with ThreadPoolExecutor(4) as threads:
        for got in threads.map(lambda step: tokenizer.tokenize(texts[step::3]), [0, 1, 2] * 8):
            assert got in (want[0::3], want[1::3], want[2::3])
