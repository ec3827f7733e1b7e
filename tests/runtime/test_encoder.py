"""Test the library as services use it."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.corpus import NASTY, sentences
from support.families import MAX_LENGTH, WIDTH
from support.vectors import ROUNDING, worst
from whiten import Encoder, ProviderError, TextError, TooLongError, UsageError, VectorWhitener, WhitenError
from whiten_runtime.bundle.parity import GATES
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


def test_difficult_texts_have_finite_vectors(tiny: Encoder) -> None:
    vectors = tiny.encode([*NASTY, "a\x00b", "lone \udc80 too", "word " * 200_000, "x" * 1_000_000])
    assert np.isfinite(vectors).all()
    np.testing.assert_array_equal(tiny.encode("\ud83d lone"), tiny.encode("\ufffd lone"))


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


def test_errors_in_a_stream_name_the_text(tiny: Encoder) -> None:
    texts: list[Any] = ["short"] * 5000
    for wrong, error in ((7, TextError), ("long " * 99, TooLongError)):
        texts[4500] = wrong
        with pytest.raises(error, match=r"texts\[4500\]"):
            list(tiny.encode_iter(texts, truncate=False))
    with pytest.raises(TextError):
        tiny.encode_iter("text")
    with pytest.raises(UsageError, match="truncate_dim"):
        tiny.encode_iter(texts, truncate_dim=99)


def test_vectors_of_other_widths_are_not_compared(tiny: Encoder) -> None:
    with pytest.raises(UsageError, match="32 and 8"):
        tiny.similarity(np.ones(WIDTH), np.ones(8))


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
