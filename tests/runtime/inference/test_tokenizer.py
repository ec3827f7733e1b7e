import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from support.corpus import NASTY
from support.vectors import token_ids
from support.vocabularies import byte_bpe, wordpiece
from whiten import BundleError, Encoder, UsageError
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.inference.tokenizer import Tokenizer

LIMIT = 9


@pytest.fixture(scope="module", params=[wordpiece, byte_bpe])
def tokenizer_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    backend = request.param()
    backend.enable_padding(length=100)  # as checkpoints on the hub have it
    backend.enable_truncation(5)
    backend.save(str(path))
    return path


@pytest.fixture(scope="module")
def both(tokenizer_file: Path) -> tuple[Tokenizer, Backend]:
    """Our tokenizer, and that of the library, which cuts texts itself."""
    backend = Backend.from_file(str(tokenizer_file))
    backend.no_padding()
    backend.enable_truncation(LIMIT)
    return Tokenizer(tokenizer_file, LIMIT), backend


@settings(deadline=None)
@given(st.lists(st.text(max_size=60), max_size=5))
def test_cut_equals_truncation_of_the_backend(both: tuple[Tokenizer, Backend], texts: list[str]) -> None:
    ours, backend = both
    assert [ours.cut(ids) for ids in ours.tokenize(texts)] == [backend.encode(text).ids for text in texts]


BEFORE, AFTER = ("[B1]", "[B2]"), ("[A1]", "[A2]")


def surrounded(path: Path, before: int, after: int) -> Path:
    """Write a tokenizer that puts so many special tokens before a text, and so many after it."""
    backend = byte_bpe((*BEFORE, *AFTER), None)
    specials = [*BEFORE[:before], "$A", *AFTER[:after]]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(specials),
        pair=" ".join([*specials, "$B:1"]),
        special_tokens=[(token, backend.token_to_id(token)) for token in (*BEFORE, *AFTER)],
    )
    backend.save(str(path))
    return path


@pytest.fixture(scope="module")
def surrounding(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """Tokenizers by the numbers of special tokens before and after a text."""
    folder = tmp_path_factory.mktemp("surrounding")
    pairs = [(before, after) for before in range(3) for after in range(3)]
    return {pair: surrounded(folder / f"{pair}.json", *pair) for pair in pairs}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.text(max_size=60), max_size=5),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from(["left", "right"]),
    st.integers(1, 20),
)
def test_cut_from_either_side_equals_truncation_of_the_backend(
    surrounding: dict[tuple[int, int], Path], texts: list[str], pair: tuple[int, int], side: Side, room: int
) -> None:
    limit = sum(pair) + room
    ours = Tokenizer(surrounding[pair], limit, side)
    backend = Backend.from_file(str(surrounding[pair]))
    backend.enable_truncation(limit, direction=side)
    assert [ours.cut(ids) for ids in ours.tokenize(texts)] == [backend.encode(text).ids for text in texts]


@pytest.mark.parametrize("pair", [(0, 0), (1, 1), (2, 0), (0, 1), (1, 2)])
def test_prompt_is_counted_with_the_special_tokens_before_it(
    surrounding: dict[tuple[int, int], Path], pair: tuple[int, int]
) -> None:
    tokenizer = Tokenizer(surrounding[pair], 40)
    (alone,) = tokenizer.tokenize(["query: "])
    assert tokenizer.prompt_tokens("query: ") == len(alone) - pair[1]
    assert tokenizer.prompt_tokens("") == 0


def test_prompt_that_is_too_long_leaves_the_special_tokens_after_it(
    surrounding: dict[tuple[int, int], Path],
) -> None:
    """As in sentence-transformers, which truncates the prompt before it counts."""
    for side in get_args(Side):
        assert Tokenizer(surrounding[1, 1], LIMIT, side).prompt_tokens("word " * 50) == LIMIT - 1


def test_lone_surrogates_are_replaced(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file, LIMIT)
    assert tokenizer.tokenize(["a \udcff b", "pair \ud83d\ude00"]) == tokenizer.tokenize(["a \ufffd b", "pair 😀"])


def test_limit_without_room_for_text_is_refused(tokenizer_file: Path) -> None:
    with pytest.raises(BundleError, match="adds 2 special tokens"):
        Tokenizer(tokenizer_file, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"].pop("unk_token", None) or content["model"]["vocab"].pop("[UNK]", None),
        lambda content: content["post_processor"]["special_tokens"].clear(),
        lambda content: content.update(model={"type": "Nonsense"}),
    ],
)
def test_broken_tokenizer_is_a_bundle_error(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(wordpiece().to_str())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(BundleError, match="tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json", LIMIT).tokenize(["\u2603 \u2603"])


def test_a_regular_expression_that_gives_up_is_a_bundle_error(tmp_path: Path) -> None:
    content = json.loads(wordpiece().to_str())
    step = {"type": "Split", "pattern": {"Regex": "(a|a)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"pre_tokenizer": step}))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", 8)
    with pytest.raises(BundleError, match=r"^the bundle's tokenizer fails \(.*retry-limit-in-match over"):
        tokenizer.tokenize(["a" * 40 + "b"])


@pytest.mark.parametrize("text", NASTY)
def test_tokens_are_those_that_are_embedded(tiny: Encoder, text: str) -> None:
    found = tiny.tokens(text)
    assert len(found) == tiny.token_count(text)
    assert [one.id for one in found][: tiny.max_seq_length - 1] == token_ids(tiny, [text])[0][
        : min(len(found), tiny.max_seq_length - 1)
    ]
    assert [one for one in found if not one.special] == tiny.tokens(text, special=False)
    assert all(0 <= one.start <= one.end <= len(text) for one in found)


@pytest.mark.parametrize(
    "text",
    [
        "\ud83d\ude00 a man",
        "a \ud83d\ude00\ud83d\ude00 man",
        "a man \ud83d",
        "\ude00\ud83d a",
        "\ud83d\ud83d\ude00 a \ud83d\ude00",
    ],
)
def test_places_of_tokens_are_those_in_a_text_of_surrogates(tiny: Encoder, text: str) -> None:
    """UTF-16 without its byte order mark has two bytes for each character of a text of the basic plane."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    want = tiny.tokens(joined)

    def units(place: int) -> int:
        return len(joined[:place].encode("utf-16-le")) // 2

    assert tiny.tokens(text) == [replace(one, start=units(one.start), end=units(one.end)) for one in want]


def test_ids_are_decoded(tiny: Encoder) -> None:
    ids = [one.id for one in tiny.tokens("hello there")]
    assert tiny.decode(ids) == "hello there"
    assert tiny.decode(ids, skip_special=False).startswith("[CLS]")
    assert tiny.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, 10**6, 2**40])
def test_ids_that_are_none(tiny: Encoder, bad: int) -> None:
    with pytest.raises(UsageError, match=rf"^ids\[0\] is {bad};"):
        tiny.decode([bad])


@pytest.mark.parametrize("pattern", ["[A-Z]", "[0-9]+", r"\(|\)", "[а-я]+"])
def test_special_tokens_are_counted_though_the_letter_a_is_nothing(pattern: str, tmp_path: Path) -> None:
    """As for tokenizers of molecules, which keep what their regular expression knows and drop the rest."""
    words = ["[UNK]", "[CLS]", "[SEP]", "C", "7", "(", "мир"]
    backend = Backend(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    backend.add_special_tokens(words[:3])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(tmp_path / "tokenizer.json", 5)
    (ids,) = ours.tokenize(["C(7) мир " * 9])
    assert len(ids) > 5
    assert (ours.cut(ids)[0], ours.cut(ids)[-1], len(ours.cut(ids))) == (1, 2, 5)
