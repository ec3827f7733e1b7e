"""Provide texts and token shapes that are chosen to break exporters, tokenizers and padding, and the longest texts."""

import numpy as np

_PLAIN = (
    "",
    " ",
    "a",
    "No.",
    "The committee postponed its decision until the spring.",
    "the committee postponed its decision until the spring",
    "THE COMMITTEE POSTPONED ITS DECISION UNTIL THE SPRING!",
    "A heron stands at the edge of the pond, waiting for something to move.",
    "Two cyclists wait at a red light while a tram turns the corner.",
    "She did not say that he was late; she said that he was never on time.",
    "How many of the 1,024 samples lie within 2.5 standard deviations (±0.1 %) of the mean?",
    "Rates rose by 25 basis points, the third increase in a row, and bonds fell.",
    "def area(radius): return 3.14159 * radius ** 2",
    "https://example.org/path?query=a%20b&page=2#section",
    "e-mail: someone@example.org, phone: +49 (0)30 1234-5678",
    "naïve café, Ångström, coöperate, jalapeño, œuvre",
    "Straße, Größe, Übermut: die Katze schläft auf dem warmen Ofen.",
    "Кошка спит на подоконнике, а собака смотрит в окно.",
    "الطقس جميل اليوم والسماء صافية",
    "今日はとても良い天気ですね。散歩に行きましょう。",
    "고양이가 창가에서 자고 있다.",
    "แมวนอนหลับอยู่บนเก้าอี้",
    "👩‍👩‍👧‍👦 went to the 🏖️ and saw 🐬🐬",
    "cafe\u0301 with a combining accent, zero\u200bwidth space, a\ttab\nand a new line",
    "NUL \x00 and bell \x07 inside",
    "[CLS] [SEP] [MASK] <s> </s> <pad> written out",
    "antidisestablishmentarianism" * 5,
    "one two three four five six seven eight nine ten " * 4,
    "When the river rose above the second mark, the ferryman tied his boat to the oak, climbed the bank, and told "
    "everyone in the inn that the bridge at the mill would not stand until morning.",
)

TOKENIZER_TEXTS = (
    "  two spaces before, two after  ",
    "\u00a0no-break\u00a0space\u3000ideographic space\u2009thin space",
    "\ufeffbyte order mark, soft\u00adhyphen, word\u2060joiner, \u200fright-to-left mark",
    "\u1112\u1161\u11ab\u1100\u1173\u11af in jamo, A\u030angstro\u0308m decomposed, \u0e01\u0e33\u0e25\u0e31\u0e07",
    "ＦＵＬＬ　ｗｉｄｔｈ １２３, ﬁne ligature, ½ cup, ㎏, Ⅳ, 𝒜𝓁𝓅𝒽𝒶",
    "İstanbul, ISTANBUL, ıssız, ẞ, ς and Σ, ŉ, ǆ",
    "❤️ 👍🏽 🇩🇪 🏴󠁧󠁢󠁳󠁣󠁴󠁿 1️⃣",
    "tab\there\r\nnew line\x0bvertical\x0cform feed\x1bescape\x7fdelete\x85next line",
    "[PAD] [UNK] <unk> <mask> <|endoftext|> <extra_id_0> [cls] written out",
    "\u0301\u0301 marks alone, z\u0351\u0343\u0357\u0346a\u0352l\u0341go",
    "x" * 300,
    "don't, isn't, U.S.A., e.g. 3.14, 1,000,000, A-B, 'quoted', \u201cquoted\u201d, ... and \u2026",
)
"""Texts, besides the probes, on which tokenizers are compared."""


LONGEST_PROBE = 1024
"""Maximum number of words of the texts whose vectors are compared: attention grows with its square."""


def probe_texts(max_seq_length: int) -> tuple[str, ...]:
    """Return the probe texts of every bundle; the last has more tokens than `max_seq_length`."""
    words = ("river", "stone", "light", "paper", "garden", "window", "engine", "letter", "winter", "music")
    longest = " ".join(words[(7 * index + index // 10) % 10] for index in range(max_seq_length + 8))
    return (*_PLAIN, longest)


def token_batches(max_seq_length: int, vocab_size: int, pad_token_id: int) -> list[list[list[int]]]:
    """Return batches of random ids: (1, 1), (1, max), (7, 13) full, (7, 13) and (3, max) of mixed lengths.

    The longest row is the same in both batches that have it, so that a reference computes it once.
    """
    generator = np.random.default_rng(0)
    vocabulary = np.delete(np.arange(vocab_size), pad_token_id if pad_token_id < vocab_size else [])
    longest, middle = max_seq_length, min(13, max_seq_length)
    mixed = [max(1, round(middle * part)) for part in (1, 0.1, 0.5, 0.8, 0.25, 0.65, 0.4)]
    shapes = [[1], [longest], [middle] * 7, mixed, [1, max(1, longest // 2)]]
    rows = [[generator.choice(vocabulary, length).tolist() for length in lengths] for lengths in shapes]
    rows[-1] = [*rows[1], *rows[-1]]
    return rows


_WORDS = (
    "harbour",
    "copper",
    "autumn",
    "ladder",
    "signal",
    "meadow",
    "ticket",
    "thunder",
    "pencil",
    "orchard",
    "wheel",
)


def long_texts(max_seq_length: int) -> tuple[str, ...]:
    """Return a text that is cut at the maximum length and one of at least half of it; none if all probes are as long.

    Each word is one token or more.
    """
    if max_seq_length <= LONGEST_PROBE:
        return ()
    return tuple(_text(words, first) for words, first in ((max_seq_length + 8, 0), (max_seq_length // 2, 5)))


def _text(words: int, first: int) -> str:
    """Return a text whose words do not repeat after a fixed number of them."""
    return " ".join(_WORDS[(first + 3 * index + index // 11 + index // 97) % 11] for index in range(words))
