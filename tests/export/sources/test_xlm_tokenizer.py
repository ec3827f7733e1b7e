import json
import string
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from transformers import XLMTokenizer

from support.corpus import NASTY
from whiten_export.proof.probe_texts import probe_texts
from whiten_export.sources.xlm_tokenizer import build_xlm_tokenizer, surplus_pieces
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus

pytest.importorskip("sacremoses")

pytestmark = pytest.mark.slow

SPECIALS = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{index}>" for index in range(10))]

PARTS = [  # of what Moses and XLM treat in their own way
    "\x00",
    "\x1c\x1da\x1eb",
    "private \ue000 \U000f0000 \U0010ffff \ufffe ..\ue000.. MULTI",
    "'\x00' '\u200b's \"\u200b. a\u200b.b. C '\r'",
    "cafe\u0301 e\u0301x a\u0301\u0302b A\u030a. B a.\u0301 b \u0301.",
    "ΟΔΟΣ ΣΑΣ Σ ΑΣ. ΑΣ'Α ΣΣ ᾼ Α\u0301Σ",
    "，、。 ．  ”“∶：？《》）！（；１２３４５６７８９０」「～’…━〈〉【】％",
]
LONG = ["x" * 3000, "a." * 500, "." * 500, "ab" * 500 + ".", "don't " * 50, "'" * 50, "a'" * 50, "," * 51, "1," * 50]
SPECIALS_IN_TEXT = [
    "a<s>b",
    "</s></s>",
    "Mr. <unk> Smith.<s> '<s>' <special1>.5",
    "<special10> <spe cial0> <s </w> a</w>",
]
WORDS = [
    "https://example.org/path?query=a%20b&page=2#section",
    "e-mail: someone@example.org, phone: +49 (0)30 1234-5678",
    "1,024 and 2.5, or 3,5. 1,a a,1 ,1 1, a,,1 1,,2 ,,1 a,,,1 1,,,2",
    "½,½ 1,½ ²,2 ٣,٤",
    "Mr. Smith's dog. Mr. 1 Dr. No. Mr. x mr. X Ph.D. p.m. It",
    "don't Don't. won't! 'tis o'clock rock'n'roll x'y'z 'a' 'hello' dogs' 1990's 5'a 6's '90s a'1 1'1",
    "U.S.A. is U.S.A. Is etc. and etc. And i.e. this e.g. That v. vs. Rs. 5 (e.g.) (Mr.) x",
    "No. 5 No. five Art. 3 pp. 12 Nos. 4 No.5 no. 5 No. ٣",
    "No.",
    "end .",
    "a. b. C. D 3.14. 3. x 3. X İ. ß.",
    *("he said.'", "he said. '", "he said.' ", 'he said."', "he said.''", "...'", ".'", "'.", ".a", "..", "a.."),
    "a...b a... b a ...b Wait...what etc... … a…b… . . .",
    "“Hello,” she said. ‘Yes,’ ’twas „gut“ ‚so‘ «oui» « oui » »nein«",
    "«\xa0oui\xa0» \xa0«a\xa0», »\xa0.",
    "5\xa0000\xa0000 1\xa02\xa03 5\xa0% nº\xa05 20\xa0ºC a\xa0: b\xa0; c\xa0? d\xa0! Mr.\xa0X",
    "\",. \",,. '',. ``quoted'' `x` ´y´ ´´z´´",
    "a – b — c—d e–f a-b a--b",
    "( a ) [b] {c} (d). ( e ), (5) % 5 % :) ;) a : b ; c",
    "| || a|b &amp; &lt; &#124; & &quot; < > @-@",
    "DOTMULTI DOTDOTMULTI xDOTMULTIy DOTDOT MULTI. ...DOTMULTI",
]
TEXTS = [*NASTY, *PARTS, *LONG, *SPECIALS_IN_TEXT, *WORDS]


def write_vocabulary(folder: Path, texts: list[str], dropped: int = 0) -> Path:
    """Write the files of an XLM checkpoint's tokenizer, whose vocabulary lacks some of the pieces that merges make."""
    trained = Tokenizer(BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    trained.pre_tokenizer = WhitespaceSplit()
    trainer = BpeTrainer(
        vocab_size=2000, special_tokens=SPECIALS, end_of_word_suffix="</w>", limit_alphabet=200, show_progress=False
    )
    marks = " ".join(string.punctuation + string.digits + "äéσς½今가ก")
    trained.train_from_iterator([marks, *(text.lower() for text in texts)], trainer)
    model = json.loads(trained.to_str())["model"]
    made = ["".join(pair) for pair in model["merges"][:dropped]]
    kept = [piece for piece in sorted(model["vocab"], key=model["vocab"].get) if piece not in made]
    (folder / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(kept)}), "utf-8")
    # The last column counts how often the pair occurred.
    lines = [f"{left} {right} {9000 - rank}\n" for rank, (left, right) in enumerate(model["merges"])]
    (folder / "merges.txt").write_text("".join(lines), "utf-8")
    return folder


def load(folder: Path, **options: Any) -> Any:
    content = {"tokenizer_class": "XLMTokenizer", "model_max_length": 512, **options}
    (folder / "tokenizer_config.json").write_text(json.dumps(content), "utf-8")
    return XLMTokenizer.from_pretrained(folder)


def rebuild(original: Any) -> Tokenizer:
    rebuilt: Tokenizer = Tokenizer.from_str(build_xlm_tokenizer(original).to_str())
    return rebuilt


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return list(islice(Corpus((BUILTIN_CORPUS,), None, None), 1000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("xlm"), sentences)


@pytest.fixture(scope="module")
def original(folder: Path) -> Any:
    return load(folder)


@pytest.fixture(scope="module")
def rebuilt(original: Any) -> Tokenizer:
    return rebuild(original)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_difficult_texts_have_the_original_ids(original: Any, rebuilt: Tokenizer, text: str) -> None:
    assert rebuilt.encode(text).ids == original(text)["input_ids"]


def test_probe_texts_and_sentences_have_the_original_ids(
    original: Any, rebuilt: Tokenizer, sentences: list[str]
) -> None:
    texts = [*probe_texts(64), *sentences]
    different = [text for text in texts if rebuilt.encode(text).ids != original(text)["input_ids"]]
    assert different == []


@given(st.text("aAbsStTnN019 .,'\"’‘“”«»–—…-()!?:;%$&>/|`´_@#~½éΣ\xa0\t\n", max_size=60))
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_of_ordinary_characters_has_the_original_ids(original: Any, rebuilt: Tokenizer, text: str) -> None:
    assert rebuilt.encode(text).ids == original(text)["input_ids"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_has_the_original_ids(original: Any, rebuilt: Tokenizer, text: str) -> None:
    assert rebuilt.encode(text).ids == original(text)["input_ids"]


def test_pieces_of_the_test_words_are_mostly_known(original: Any, rebuilt: Tokenizer) -> None:
    """Equal ids show equal splits only if few pieces are unknown."""
    pieces = [piece for text in WORDS for piece in rebuilt.encode(text, add_special_tokens=False).tokens]
    assert pieces.count("<unk>") < len(pieces) / 10
    assert rebuilt.decode(rebuilt.encode("A river, and no bridge!").ids) == "a river , and no bridge !"


def test_case_and_accents_are_kept_where_the_original_keeps_them(folder: Path) -> None:
    original = load(folder, do_lowercase_and_remove_accent=False)
    rebuilt = rebuild(original)
    texts = [*TEXTS, "A Big Café"]
    assert [rebuilt.encode(text).ids for text in texts] == [original(text)["input_ids"] for text in texts]
    assert "<unk>" in rebuilt.encode("A Big Café").tokens


def test_added_tokens_have_the_original_ids(folder: Path) -> None:
    original = load(folder)
    original.add_tokens(["<new word>"])
    original.add_tokens(["<new special>"], special_tokens=True)
    rebuilt = rebuild(original)
    text = "a <new word> and<new special>. End"
    assert rebuilt.encode(text).ids == original(text)["input_ids"]
    assert {len(original) - 2, len(original) - 1} < set(rebuilt.encode(text).ids)


def test_pieces_that_the_vocabulary_lacks_have_ids_above_it(tmp_path: Path, sentences: list[str]) -> None:
    original = load(write_vocabulary(tmp_path, sentences, dropped=300))
    rebuilt = rebuild(original)
    surplus = surplus_pieces(original)
    first = len(original)
    assert len(surplus) == 300
    assert [rebuilt.id_to_token(first + index) for index in range(len(surplus))] == list(surplus)

    texts = [*TEXTS, *sentences]
    found = [rebuilt.encode(text).ids for text in texts]
    assert any(identity >= first for ids in found for identity in ids)
    unknown = original.unk_token_id
    known = [[unknown if identity >= first else identity for identity in ids] for ids in found]
    assert known == [original(text)["input_ids"] for text in texts]
