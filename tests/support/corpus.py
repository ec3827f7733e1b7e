"""Texts that the tests embed, and on which their vocabularies are trained."""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ALPHABETS = "abcdefghijklmnopqrstuvwxyzäöüßéñ абвгдежзийклмнопрст 今日天気 الطقس 고양이 แมว 👩👧🐬 0123456789 .,;:!?%"


@cache
def _docstrings() -> tuple[str, ...]:
    path = Path(__file__).parents[1] / "data" / "docstrings.txt.gz"
    return tuple(gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())


def sentences(count: int) -> list[str]:
    """Return sentences of the docstrings of Python 3.11, on which the golden bundle in tests/data was fitted."""
    return list(_docstrings()[:count])


def training_text() -> Iterator[str]:
    yield ALPHABETS
    yield from sentences(2000)


NASTY = (
    "",
    " ",
    "\t\n",
    "a",
    "naïve café Ångström cœur ÀÉÎÕÜ ñandú",
    "nai\u0308ve cafe\u0301 A\u030angstro\u0308m A\u0300E\u0301I\u0302O\u0303U\u0308 n\u0303andu\u0301",
    "Z\u0351\u036b\u0343a\u0324\u034e\u0353l\u0337g\u0300\u0301\u0302\u0303o\u20dd",
    "\u0301 begins with a mark, q\u0323\u0307 and q\u0307\u0323 are equal",
    "今日はとても良い天気ですね。散歩に行きましょう！",
    "天氣很好、我們去公園吧。𠀀𠮷野家",
    "ﾊﾝｶｸ ｶﾀｶﾅ が か\u3099 ヷ ㍿ ㎏ ㋿",
    "고양이가 창가에서 자고 있다.",
    "\u1100\u1169\u110b\u1163\u11bc\u110b\u1175 고양이 ㅋㅋㅋ \uffa1\uffc7",
    "แมวนอนหลับอยู่บนเก้าอี้ น้ำ",
    "Кошка спит на подоконнике. ЁЖИК, ёжик, \u0438\u0306, й, Їжак",
    "الطقسُ جميلٌ اليومَ ٠١٢٣٤ ﷺ لا",
    "שָׁלוֹם עולם, हिन्दी में, தமிழ், ქართული, Ελληνικά ΣΊΣΥΦΟΣ, Ὀδυσσεύς",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 1️⃣ ☺︎ ☺️ 🐬🐬",
    "zero\u200bwidth\u200djoi\u200cner\ufeff\u2060end",
    "\ufeffmark at the start",
    "soft\u00adhyphen non\u2011breaking\u2010hyphen — – ― − ‐",
    "NUL \x00 bell \x07 escape \x1b[0m delete \x7f next\x85line \x9f end",
    "unit\x1fseparator file\x1cgroup\x1drecord\x1e\x0bvertical\x0cform",
    "line\u2028separator paragraph\u2029separator",
    "antidisestablishmentarianism" * 9,
    "x" * 300,
    "ああ" * 120,
    "!?" * 80,
    "1234567890" * 12,
    "[CLS] [SEP] <s> </s> <pad> <|endoftext|> <unk> <mask> <extra_id_0>",
    "[CLS][SEP][MASK][PAD][UNK] x[MASK]y x [MASK] y x<mask>y x <mask> y <mask>",
    "<s>NOTUSED </s>NOTUSED <unk>NOTUSED <special0> <special1> <special9> <extra_id_99><extra_id_1>",
    "<S> </S> <PAD> [cls] [Mask] <MASK> <| endoftext |> <|endoftext|><|endoftext|> < s > <0x41> <0x0A>",
    "a <s> b</s>c  <pad>  d <unk>e <|endoftext|>",
    " leading",
    "trailing ",
    "   leading   and  multiple    and trailing   ",
    "tabs\tand\t\ttabs",
    "new\nline\n\nand\r\nreturn\r",
    "no\u00a0break\u00a0\u00a0spaces \u00a0 end\u00a0",
    "ideographic\u3000space\u3000\u3000end\u3000",
    "\u2003em\u2009thin\u202fnarrow\u205fmath\u1680ogham\u180emongolian\u2000",
    "ﬁne ﬂow ofﬁce ﬆ Ǆ ǅ ĳ œuvre Æsir",
    "Ｆｕｌｌｗｉｄｔｈ　Ｆｏｒｍｓ（１２３）！？％～",
    "𝐌𝐚𝐭𝐡 𝔣𝔯𝔞𝔨𝔱𝔲𝔯 𝒮𝒸𝓇𝒾𝓅𝓉 𝟘𝟙𝟚 ℝ ℵ x² ½ ¾ ₀ ™ Ⅻ ①",
    "İstanbul ISPARTA ıspanak i\u0307 I\u0307 DİYARBAKIR",
    "Straße STRASSE ẞ ſ ŉ ΐ",
    "right\u200fto\u200eleft \u202ereversed\u202c \u2067isolated\u2069 \u061c",
    "private \ue000 \uf8ff \U000f0000 \U0010fffd",
    "non \ufdd0 \ufffe \uffff \U0001ffff \U0010ffff characters, \ufffd replaced",
    "unassigned \u0378 \U0001fbff \U000e0041\U000e007f tags, variation\ufe0f\U000e0100",
    "▁lower▁one ▁ block ▁▁ _ Ġbyte Ċ level ## ##ing @@ wo@@ rd</w> </w>",
    "``quotes'' ''and`` \"straight\" “curly” „low“ «guillemets» ‘single’ ‚x‘ 'tis don't we'll I'M YOU'RE",
    "e-mail: a.b@example.org, https://example.org/a?b=%20&c=1#d, C:\\path\\file, #tag @user $5 £3 €2 5% &amp; <b>",
    "3.14159, 1,024 2.5e-3 10:30 12/31/1999 Mr. Smith vs. Dr. No. U.S.A. e.g. i.e. No. 5 p.m...",
    "snake_case camelCase kebab-case a|b a+b=c {x: [1, 2]} ~^`",
    "ALL CAPS and MiXeD cAsE",
    "one two three four five six seven eight nine ten " * 12,
)
"""Texts on which two tokenizers that nearly agree do not."""
