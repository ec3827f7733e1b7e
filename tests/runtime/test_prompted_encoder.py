"""Test encoders of bundles with prompts, routes, other similarities and Matryoshka dimensions."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.bundles import copy_bundle
from support.cli import ok, refused
from support.vectors import ROUNDING, worst
from whiten import Encoder, TooLongError, UsageError
from whiten_runtime.bundle.bundle import WHITENING_FILE

PROMPTS = {"query": "query: ", "passage": "passage: ", "angle": 'Say "{text}" in one word', "empty": ""}
TEXTS = ("a text", "", "{text}", "another text of some words")
Opened = Callable[..., Encoder]


@pytest.fixture
def opened(golden: Path, tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens a copy of a golden bundle with some fields changed, in all of its files."""
    with ExitStack() as stack:

        def get(bundle: str = "bundle-v1", **changes: Any) -> Encoder:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            return stack.enter_context(Encoder(copy_bundle(golden / bundle, folder, **changes)))

        yield get


def applied(prompt: str) -> list[str]:
    """Apply a prompt by hand."""
    return [prompt.replace("{text}", text) if "{text}" in prompt else prompt + text for text in TEXTS]


@pytest.mark.parametrize("name", list(PROMPTS))
def test_prompt_is_part_of_the_text_in_every_way_to_embed(opened: Opened, tiny: Encoder, name: str) -> None:
    encoder = opened(prompts=PROMPTS)
    want = tiny.encode(applied(PROMPTS[name]))
    for choice in ({"prompt_name": name}, {"prompt": PROMPTS[name]}):
        for encode in (encoder.encode, encoder.encode_query, encoder.encode_document):
            assert worst(encode(TEXTS, **choice), want) < ROUNDING
            assert worst(encode(TEXTS[0], **choice), want[0]) < ROUNDING
        assert worst(np.stack(list(encoder.encode_iter(TEXTS, **choice))), want) < ROUNDING


def test_both_outputs_are_those_of_the_text_with_its_prompt(opened: Opened) -> None:
    encoder = opened("bundle-v1-int8", prompts=PROMPTS, default_prompt_name="passage")
    for choice, prompt in (({}, "passage: "), ({"prompt_name": "query"}, "query: "), ({"prompt": "Q: "}, "Q: ")):
        want = encoder.encode_both(applied(prompt), prompt="")
        for got, wanted in zip(encoder.encode_both(TEXTS, **choice), want, strict=True):
            assert worst(got, wanted) < ROUNDING


def test_default_prompt_is_applied_by_encode_alone(opened: Opened, tiny: Encoder) -> None:
    encoder = opened(prompts=PROMPTS | {"sts": "similar: "}, default_prompt_name="sts")
    assert (encoder.prompts, encoder.default_prompt_name) == (PROMPTS | {"sts": "similar: "}, "sts")
    assert worst(encoder.encode(TEXTS), tiny.encode(applied("similar: "))) < ROUNDING
    assert worst(np.stack(list(encoder.encode_iter(TEXTS))), tiny.encode(applied("similar: "))) < ROUNDING
    assert worst(encoder.encode(TEXTS, prompt=""), tiny.encode(TEXTS)) < ROUNDING
    assert worst(encoder.encode_query(TEXTS), tiny.encode(applied("query: "))) < ROUNDING
    assert worst(encoder.encode_document(TEXTS), tiny.encode(applied("passage: "))) < ROUNDING


def test_queries_of_a_bundle_without_their_prompt_have_none(opened: Opened, tiny: Encoder) -> None:
    encoder = opened(prompts={"sts": "similar: "}, default_prompt_name="sts")
    assert worst(encoder.encode_query(TEXTS), tiny.encode(TEXTS)) < ROUNDING
    assert worst(encoder.encode_document(TEXTS), tiny.encode(TEXTS)) < ROUNDING
    corpus = opened(prompts={"corpus": "c: ", "passage": "p: "})
    assert worst(corpus.encode_document(TEXTS), tiny.encode(applied("p: "))) < ROUNDING
    templates = opened(prompts={"angle": PROMPTS["angle"]}, default_prompt_name="angle")
    assert worst(templates.encode_query(TEXTS), tiny.encode(applied(PROMPTS["angle"]))) < ROUNDING


def test_every_way_to_embed_refuses_what_cannot_be_applied(opened: Opened, tiny: Encoder) -> None:
    encoder = opened("bundle-v1-int8", prompts=PROMPTS)
    ways = (encoder.encode, encoder.encode_query, encoder.encode_document, encoder.encode_iter, encoder.encode_both)
    for encode in ways:
        with pytest.raises(UsageError, match="prompts are: 'query', 'passage', 'angle', 'empty'"):
            encode(["a text"], prompt_name="no such")
        with pytest.raises(UsageError, match="'query' were both given"):
            encode(["a text"], prompt_name="query", prompt="")
        for choice in ({"prompt": 7}, {"prompt": ["query: "]}, {"prompt_name": 7}, {"prompt_name": ["query"]}):
            with pytest.raises(UsageError, match="wanted a str|prompt_name is"):
                encode(["a text"], **choice)
    apart = opened(prompts=PROMPTS, include_prompt=False)
    for choice in ({"prompt_name": "angle"}, {"prompt": "Say {text}"}):
        with pytest.raises(UsageError, match="leaves prompts out of its pooling"):
            apart.encode("a text", **choice)
    with pytest.raises(UsageError, match="prompts are: none"):
        tiny.encode("a text", prompt_name="query")


@pytest.mark.parametrize(("route", "other"), [("query", "document"), ("document", "query")])
def test_texts_of_the_other_route_are_refused(opened: Opened, tiny: Encoder, route: str, other: str) -> None:
    encoder = opened(route=route)
    with pytest.raises(UsageError, match=f"holds the route {route}; export one with --route {other}"):
        getattr(encoder, f"encode_{other}")("a text")
    for encode in (getattr(encoder, f"encode_{route}"), encoder.encode):
        assert worst(encode("a text"), tiny.encode("a text")) < ROUNDING
    for name in ("encode_query", "encode_document"):
        assert worst(getattr(opened(route="image"), name)("a text"), tiny.encode("a text")) < ROUNDING


def test_prompts_are_truncated_with_the_text_and_counted(opened: Opened, tiny: Encoder) -> None:
    text = "word " * 20
    prompt = "one two three four five six seven eight nine ten "
    count = tiny.token_count(prompt + text)
    encoder = opened(prompts={"long": prompt})
    encoder.encode(text, truncate=False)
    assert encoder.truncated == 0
    for done, encode in enumerate((encoder.encode, encoder.encode_query, encoder.encode_document), 1):
        assert worst(encode([text], prompt_name="long"), tiny.encode([prompt + text])) < ROUNDING
        assert encoder.truncated == done
        with pytest.raises(TooLongError, match=rf"texts\[0\] has {count} tokens"):
            encode([text], prompt_name="long", truncate=False)


def test_prompt_is_cut_first_where_texts_are_truncated_from_the_left(opened: Opened, tiny: Encoder) -> None:
    encoder = opened(truncation_side="left", prompts={"long": "nine ten " * 60})
    text = "the last words of a text"
    kept = encoder._tokenizer.cut(encoder._tokenizer.tokenize(["nine ten " * 60 + text])[0])
    assert len(kept) == encoder.max_seq_length
    assert (kept[0], kept[-7:]) == (kept[0], encoder._tokenizer.tokenize([text])[0][-7:])
    assert worst(encoder.encode(text, prompt_name="long"), encoder._engine.run([kept])[0]) < ROUNDING
    assert worst(encoder.encode(text, prompt_name="long"), tiny.encode("nine ten " * 60 + text)) > ROUNDING


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ((), "passage: "),
        (("--prompt-name", "query"), "query: "),
        (("--prompt-name", "angle"), PROMPTS["angle"]),
        (("--prompt", "Q: "), "Q: "),
        (("--prompt", "Say {text}"), "Say {text}"),
        (("--prompt", ""), ""),
    ],
)
def test_the_command_applies_the_prompts_of_encode(
    opened: Opened, tiny: Encoder, options: tuple[str, ...], prompt: str
) -> None:
    bundle = opened(prompts=PROMPTS, default_prompt_name="passage")._bundle.path
    rows = [json.loads(line) for line in ok("embed", bundle, *options, *TEXTS).stdout.splitlines()]
    assert [row["text"] for row in rows] == list(TEXTS)
    assert worst(np.array([row["embedding"] for row in rows]), tiny.encode(applied(prompt))) < ROUNDING


def test_vectors_without_whitening_are_cut_to_matryoshka_dimensions(opened: Opened, tiny: Encoder) -> None:
    encoder = opened(whitening=None, matryoshka_dimensions=[16, 8])
    assert encoder.verify().min_cosine > 0.9999
    full = encoder.encode(TEXTS)
    whitening = load_file(tiny._bundle.path / WHITENING_FILE)
    assert worst((full - whitening["mean"]) @ whitening["W"], tiny.encode(TEXTS)) < ROUNDING
    for dimension in (8, 16, 32):
        cut = encoder.encode(TEXTS, truncate_dim=dimension)
        assert worst(cut, full[:, :dimension]) < ROUNDING
        assert worst(np.stack(list(encoder.encode_iter(TEXTS, truncate_dim=dimension))), cut) < ROUNDING
    with pytest.raises(UsageError, match="truncate_dim is 12; the model was trained for vectors cut to 16, 8$"):
        encoder.encode(TEXTS, truncate_dim=12)
    refused("embed", encoder._bundle.path, "a text", "--truncate-dim", "12")
    with pytest.raises(UsageError, match="there is no whitening, whose first coordinates mean no more"):
        opened(whitening=None).encode(TEXTS, truncate_dim=8)


def test_cut_vectors_of_a_bundle_that_normalises_are_normalised_again(opened: Opened) -> None:
    encoder = opened(whitening=None, matryoshka_dimensions=[16, 8], normalize=True)
    assert encoder.verify().min_cosine > 0.9999
    cut = encoder.encode(TEXTS, truncate_dim=8)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, rtol=1e-6)
    want = opened(whitening=None).encode(TEXTS)[:, :8]
    assert worst(cut, want / np.linalg.norm(want, axis=1, keepdims=True)) < ROUNDING
