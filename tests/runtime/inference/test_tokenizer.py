import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from support.vocabularies import byte_bpe, wordpiece
from whiten_runtime import BundleError
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(max_size=60), max_size=5))
def test_cut_equals_truncation_of_the_backend(tokenizer_file: Path, texts: list[str]) -> None:
    ours = Tokenizer(tokenizer_file, LIMIT)
    backend = Backend.from_file(str(tokenizer_file))
    backend.no_padding()
    backend.enable_truncation(LIMIT)
    assert [ours.cut(ids) for ids in ours.tokenize(texts)] == [backend.encode(text).ids for text in texts]


def test_lone_surrogates_are_replaced(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer(tokenizer_file, LIMIT)
    assert tokenizer.tokenize(["a \udcff b", "pair \ud83d\ude00"]) == tokenizer.tokenize(["a \ufffd b", "pair 😀"])


def test_tokens_of_a_prompt_that_is_too_long_are_counted_as_truncated(tokenizer_file: Path) -> None:
    """The special tokens after the text are then all that is pooled, as in sentence-transformers."""
    tokenizer = Tokenizer(tokenizer_file, LIMIT)
    assert tokenizer.prompt_tokens("a " * 50) == LIMIT - 1


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
