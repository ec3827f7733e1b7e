"""Test which vocabularies count as multilingual."""

import pytest
from tokenizers import Tokenizer, decoders, models

from whiten_export.pipeline.choose_whitening import is_multilingual


def vocabulary(words: list[str]) -> str:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    return str(tokenizer.to_str())


LATIN = [f"wort{n}é" for n in range(80)]


@pytest.mark.parametrize(
    ("others", "expected"),
    [([], False), (["слово"], False), ([f"слово{n}" for n in range(20)], True), ([f"今{n}" for n in range(30)], True)],
)
def test_share_of_other_scripts_decides(others: list[str], expected: bool) -> None:
    assert is_multilingual(vocabulary([*LATIN, *others])) == expected


def test_bytes_of_other_scripts_are_decoded() -> None:
    def of_bytes(text: str) -> str:
        from tokenizers.pre_tokenizers import ByteLevel

        return ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]

    words = [of_bytes(f"слово{n}") for n in range(40)] + LATIN
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoders.ByteLevel()
    assert is_multilingual(tokenizer.to_str())
