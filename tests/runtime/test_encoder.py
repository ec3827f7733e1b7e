"""Test the library as services use it."""

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.corpus import NASTY, sentences
from support.families import MAX_LENGTH, WIDTH
from support.vectors import ROUNDING, worst
from whiten import Encoder, ProviderError, TextError, TooLongError, UsageError, VectorWhitener, WhitenError
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.encoder import embedder_of
from whiten_runtime.ort.session import BFLOAT16

CPU = "CPUExecutionProvider"


def test_shapes_and_types(tiny: Encoder) -> None:
    assert tiny.dimension == WIDTH
    assert tiny.max_seq_length == MAX_LENGTH
    one, several, none = tiny.encode("a text"), tiny.encode(["a text", ""]), tiny.encode([])
    assert (one.shape, several.shape, none.shape) == ((WIDTH,), (2, WIDTH), (0, WIDTH))
    assert {array.dtype for array in (one, several, none)} == {np.dtype(np.float32)}
    assert np.isfinite(several).all()
    np.testing.assert_array_equal(tiny.encode(iter(["a text", ""])), several)
    np.testing.assert_array_equal(tiny.encode(np.array(["a text", ""])), several)


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-int8"])
def test_no_text_has_no_vector(golden: Path, name: str) -> None:
    with Encoder(golden / name) as encoder:
        for options in ({}, {"normalize_embeddings": True}, {"truncate_dim": 3}):
            assert encoder.encode([], **options).shape == (0, options.get("truncate_dim", encoder.dimension))


def test_order_and_batch_composition_do_not_matter(tiny: Encoder) -> None:
    texts = sentences(300)
    together = tiny.encode(texts)
    alone = np.stack([tiny.encode(text) for text in texts])
    order = np.random.default_rng(0).permutation(len(texts))
    assert worst(together, alone) < ROUNDING
    assert worst(tiny.encode([texts[i] for i in order], batch_size=7), alone[order]) < ROUNDING


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec=None), max_size=80), min_size=1, max_size=8), st.integers(1, 5))
def test_vector_of_any_text_does_not_depend_on_its_batch(tiny: Encoder, texts: list[str], batch_size: int) -> None:
    vectors = tiny.encode(texts, batch_size=batch_size)
    assert np.isfinite(vectors).all()
    assert worst(vectors, np.stack([tiny.encode(text) for text in texts])) < ROUNDING


def test_difficult_texts_have_finite_vectors(tiny: Encoder) -> None:
    vectors = tiny.encode([*NASTY, "a\x00b", "lone \udc80 too", "word " * 200_000, "x" * 1_000_000])
    assert np.isfinite(vectors).all()
    np.testing.assert_array_equal(tiny.encode("\ud83d lone"), tiny.encode("\ufffd lone"))


def test_long_texts_are_truncated_and_counted_or_refused(tiny_bundle: Path) -> None:
    text = "one two three " * 50
    with Encoder(tiny_bundle) as encoder:
        assert encoder.truncated == 0
        encoder.encode(["short", text, text])
        assert encoder.truncated == 2
        count = encoder.token_count(text)
        assert encoder.token_count(["", text]) == [2, count]
        with pytest.raises(TooLongError, match=rf"has {count} tokens, but the bundle takes {MAX_LENGTH}"):
            encoder.encode(["short", text], truncate=False)
        little = "one two " * (MAX_LENGTH // 2)
        count = encoder.token_count(little)
        with pytest.raises(TooLongError, match=rf"texts\[1\] has {count} tokens, but the bundle takes {MAX_LENGTH}"):
            encoder.encode(["short", little], truncate=False)
        np.testing.assert_array_equal(encoder.encode("short", truncate=False), encoder.encode("short"))


def test_characters_are_bounded_before_a_text_is_tokenised(tiny_bundle: Path) -> None:
    blanks = f"one{' ' * 1000}two"
    with Encoder(tiny_bundle) as encoder, Encoder(tiny_bundle, max_characters=500) as bounded:
        whole, one = encoder.encode([blanks, "one"])
        assert encoder.truncated == 0
        np.testing.assert_array_equal(bounded.encode(blanks), one)
        np.testing.assert_array_equal(bounded.encode(blanks, max_characters=1006), whole)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(bounded)).encode(blanks), one)
        assert bounded.truncated == 1
        np.testing.assert_array_equal(list(encoder.encode_iter(["", blanks], max_characters=500))[1], one)
        np.testing.assert_array_equal(
            encoder.encode(blanks, prompt="a b ", max_characters=500), encoder.encode("a b one")
        )
        with pytest.raises(TooLongError, match=r"texts\[1\] has 1006 characters, but at most 500 are read"):
            bounded.encode(["one", blanks], truncate=False)


def test_texts_of_too_many_tokens_and_characters_are_counted_once(tiny_bundle: Path) -> None:
    text = "one two three " * 5000
    with Encoder(tiny_bundle) as encoder:
        assert len(text) > 250 * MAX_LENGTH
        vectors = encoder.encode([text, text[: 40 * MAX_LENGTH], "one"])
        assert encoder.truncated == 2
        np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_streams_are_embedded_in_bounded_memory_and_in_order(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny._engine, "schedule", replace(tiny._engine.schedule, window=16))
    texts = sentences(100)
    read = 0

    def stream() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    vectors = []
    for count, vector in enumerate(tiny.encode_iter(stream(), normalize_embeddings=True, truncate_dim=8), 1):
        assert read <= count + 2 * 16
        vectors.append(vector)
    want = tiny.encode(texts, normalize_embeddings=True, truncate_dim=8)
    assert worst(np.stack(vectors), want) < ROUNDING
    assert list(tiny.encode_iter([])) == []


def test_errors_in_a_stream_name_the_text(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny._engine, "schedule", replace(tiny._engine.schedule, window=16))
    texts: list[Any] = ["short"] * 40
    texts[35] = 7
    with pytest.raises(TextError, match=r"texts\[35\] is int 7"):
        list(tiny.encode_iter(texts))
    texts[35] = "long " * 99
    with pytest.raises(TooLongError, match=r"texts\[35\]"):
        list(tiny.encode_iter(texts, truncate=False))
    with pytest.raises(TextError, match="single str"):
        tiny.encode_iter("text")
    with pytest.raises(UsageError, match="truncate_dim"):
        tiny.encode_iter(texts, truncate_dim=99)


def test_normalize_and_truncate_dim(tiny: Encoder) -> None:
    texts = sentences(20)
    full = tiny.encode(texts)
    short = tiny.encode(texts, truncate_dim=8)
    np.testing.assert_array_equal(short, full[:, :8])
    unit = tiny.encode(texts, truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit, short / np.linalg.norm(short, axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(tiny.encode(texts, truncate_dim=np.int64(8)), short)


def test_similarity_is_the_cosine(tiny: Encoder) -> None:
    a, b = tiny.encode(sentences(5)), tiny.encode(sentences(3))
    scores = tiny.similarity(a, b)
    assert scores.shape == (5, 3)
    np.testing.assert_allclose(np.diag(scores[:3]), 1, rtol=1e-5)
    assert tiny.similarity(a[0], b[0]).shape == (1, 1)
    assert tiny.similarity(np.zeros(WIDTH), a[0]) == 0
    with pytest.raises(UsageError, match="32 and 8 dimensions"):
        tiny.similarity(a, b[:, :8])


def test_verify_counts_no_texts_as_truncated(tiny: Encoder) -> None:
    counted = tiny.truncated
    agreement = tiny.verify()
    assert tiny.truncated == counted
    assert GATES["fp32"].passes(agreement)
    assert agreement.vectors >= 60


def test_progress_bar_goes_to_stderr(tiny: Encoder, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.encode(["a", "b"], show_progress_bar=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert captured.out == ""


def test_provider_that_fails_to_load_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    listed = ["CUDAExecutionProvider", CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        Encoder(tiny_bundle, providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("threads", (0, -1, 2.5, "2", True), "threads is"),
        ("providers", ([None], [(CPU,)], [(CPU, "x")]), "wanted names, or"),
        ("providers", (CPU,), "providers is the string"),
        ("providers", ([],), "providers is empty"),
        ("device", ("tpu",), "device is 'tpu'; wanted cpu, cuda, cuda:N, tensorrt"),
        ("max_characters", (0, -1, 1.5, True), "max_characters is"),
    ],
)
def test_options_of_the_encoder_are_refused(
    tiny_bundle: Path, name: str, values: tuple[object, ...], message: str
) -> None:
    for value in values:
        with pytest.raises(UsageError, match=message):
            Encoder(tiny_bundle, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="both providers and device"):
        Encoder(tiny_bundle, providers=[CPU], device="cpu")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("truncate_dim", (0, -1, WIDTH + 1)),
        ("batch_size", (0, 2.5, "8")),
        ("max_characters", (0, -1, 1.5, True)),
    ],
)
def test_options_of_encode_are_refused(tiny: Encoder, name: str, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=f"{name} is {value!r}; wanted a whole number"):
            tiny.encode("a text", **{name: value})  # type: ignore[arg-type]


def test_provider_with_options_is_accepted(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, providers=[(CPU, {BFLOAT16: "0"})], threads=1) as encoder:
        assert encoder.providers == [CPU]
        assert encoder.encode("text").shape == (WIDTH,)


def test_device_cpu_equals_the_default(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, device="cpu") as encoder, Encoder(tiny_bundle) as plain:
        assert encoder.providers == [CPU]
        np.testing.assert_array_equal(encoder.encode("text"), plain.encode("text"))
        assert pickle.loads(pickle.dumps(encoder)).placement == encoder.placement


def test_closed_encoder_is_refused(tiny_bundle: Path) -> None:
    encoder = Encoder(tiny_bundle)
    with encoder:
        encoder.warmup()
        assert encoder.truncated == 0
    with pytest.raises(WhitenError, match="was closed"):
        encoder.encode("text")
    with pytest.raises(WhitenError, match="was closed"):
        encoder.encode([])
    encoder.close()


def test_threads_share_one_encoder(tiny: Encoder) -> None:
    texts = sentences(80)
    want = tiny.encode(texts)
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: tiny.encode(texts), range(24)):
            assert worst(got, want) < ROUNDING


def test_pickled_encoder_gives_the_same_vectors(tiny_bundle: Path) -> None:
    encoder = Encoder(tiny_bundle, threads=1)
    pickled = pickle.dumps(encoder)
    assert len(pickled) < 2000
    np.testing.assert_array_equal(pickle.loads(pickled).encode("text"), encoder.encode("text"))


def test_equal_texts_are_computed_once(tiny_bundle: Path) -> None:
    texts = ["same", "other", "same", "word " * 300, "same", "word " * 300]
    with Encoder(tiny_bundle) as encoder:
        alone = np.stack([encoder.encode(text) for text in texts])
        before, seen, engine = encoder.truncated, [], embedder_of(encoder).engine
        run = engine.run

        def counting(ids: Any, *arguments: Any, **named: Any) -> Any:
            seen.append(len(ids))
            return run(ids, *arguments, **named)

        engine.run = counting  # type: ignore[method-assign]
        np.testing.assert_allclose(encoder.encode(texts), alone, atol=1e-5)
        assert seen == [3]
        assert encoder.truncated - before == 2, "each text that was cut is counted"
        with pytest.raises(TooLongError, match=r"texts\[3\] has"):
            encoder.encode(texts, truncate=False)


def test_a_row_of_encode_iter_holds_no_other(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle) as encoder:
        rows = list(encoder.encode_iter(f"text {number}" for number in range(20)))
    assert all(row.base is None for row in rows)


def test_nothing_gives_no_rows(tiny: Encoder, golden: Path) -> None:
    assert tiny.encode([]).shape == (0, 32)
    assert tiny.similarity([], np.ones((2, 32))).shape == (0, 2)
    assert tiny.similarity(np.ones(32), []).shape == (1, 0)
    assert tiny.similarity([], []).shape == (0, 0)
    assert tiny.similarity_pairwise([], []).shape == (0,)
    with VectorWhitener(golden / "bundle-v1-vectors") as whitener:
        assert whitener.transform([]).shape == (0, whitener.dimension)
        assert whitener.transform(np.empty((0, whitener.width))).shape == (0, whitener.dimension)
        with pytest.raises(UsageError, match="vectors have shape"):
            whitener.transform([[]])
