"""Test which scales are chosen, that they cover what was measured, and the texts on which ranges are measured."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Whole
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from support.graphs import graph_of
from whiten_export.graph import int8_rounding as rounding
from whiten_export.graph.int8 import (
    Vocabulary,
    bare_texts,
    calibration_texts,
    extreme_texts,
    far_texts,
    wide_texts,
)
from whiten_export.graph.int8_rounding import expected_losses, quantize_weights
from whiten_export.graph.int8_scales import (
    FAR_ROWS,
    FUNCTIONS,
    SYMMETRIC,
    Choice,
    Range,
    Scale,
    _Meter,
    choose_constants,
    choose_scales,
)
from whiten_runtime.inference.tokenizer import Tokenizer

WIDTH = 96


def measured(rows: np.ndarray) -> Range:
    rows = rows.astype(np.float32)
    low, high = np.minimum(rows.min(axis=0), 0), np.maximum(rows.max(axis=0), 0)
    return Range(low, high, rows, rows.T @ rows, rows[: 20 * FAR_ROWS])


def chosen(choice: Choice) -> Scale:
    return choice.constant if choice.constant and choose_constants({"x": choice}) else choice.token


@pytest.fixture(name="weight")
def _weight() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(WIDTH, 64)).astype(np.float32)


@pytest.fixture(name="rows")
def _rows() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(200, WIDTH)).astype(np.float32)


def relative_error(scale: Scale, rows: np.ndarray, weight: np.ndarray) -> float:
    got = scale.rounded(rows) @ scale.smoothed_weight(weight)
    return float(np.linalg.norm(got - rows @ weight) / np.linalg.norm(rows @ weight))


def test_tokens_of_like_size_get_a_constant(rows: np.ndarray, weight: np.ndarray) -> None:
    scale = chosen(choose_scales(measured(rows), [weight], "LayerNormalization"))
    assert scale.constant is not None
    assert relative_error(scale, rows, weight) < 0.015


def test_tokens_of_unlike_size_get_a_scale_each(rows: np.ndarray, weight: np.ndarray) -> None:
    rows = rows * np.geomspace(1, 1000, len(rows))[:, None]
    scale = chosen(choose_scales(measured(rows), [weight], "LayerNormalization"))
    assert scale.constant is None
    assert relative_error(scale, rows, weight) < 0.015


def test_a_constant_that_clips_far_texts_is_not_chosen(rows: np.ndarray, weight: np.ndarray) -> None:
    ranges = measured(rows)
    assert chosen(choose_scales(ranges, [weight], None)).constant is not None
    ranges.far[FAR_ROWS : 2 * FAR_ROWS] *= 10
    choice = choose_scales(ranges, [weight], None)
    assert choice.costs.argmax() == 1
    assert chosen(choice).constant is None


def test_constants_are_chosen_until_a_text_loses_too_much() -> None:
    """Of four activations, two cost the same text more than it can afford together; the cheaper one is kept."""
    token, constant = Scale(SYMMETRIC), Scale(SYMMETRIC, 1.0)
    costs = {"a": [0.014, 0.0], "b": [0.012, 0.0], "c": [0.0, 0.018], "d": [0.04, 0.0]}
    choices = {name: Choice(token, token, constant, np.array(values)) for name, values in costs.items()}
    choices["gelu"] = Choice(token, token, None, np.zeros(0))
    assert choose_constants(choices) == {"b", "c"}


def test_nothing_measured_is_clipped_by_a_constant(rows: np.ndarray, weight: np.ndarray) -> None:
    rows = rows + 3
    scale = choose_scales(measured(rows), [weight], None).constant
    assert scale is not None
    assert scale.constant is not None
    assert scale.zero_point < 100, "most values are above 0"
    assert np.abs(scale.rounded(rows) - scale.divided(rows)).max() <= scale.constant / 2 * 1.001


@pytest.mark.parametrize("kind", ["token", "constant"])
def test_outlier_channels_are_smoothed(rows: np.ndarray, weight: np.ndarray, kind: str) -> None:
    rows[:, 7] *= 100
    scale = getattr(choose_scales(measured(rows), [weight], None), kind)
    assert scale.factors is not None
    plain = Scale(scale.zero_point, scale.constant and float(np.abs(rows).max() / 127))
    assert relative_error(scale, rows, weight) < relative_error(plain, rows, weight) / 2


def test_each_product_counts_the_same(rows: np.ndarray, weight: np.ndarray) -> None:
    """Values see little of a channel that dominates queries and keys; the sum of all would hide what they lose."""
    rows[:, 7] *= 100
    queries, values = weight * 10, weight.copy()
    values[7] *= 1e-3
    together, alone = (choose_scales(measured(rows), users, None).token for users in ([queries, values], [queries]))
    assert relative_error(together, rows, values) < relative_error(alone, rows, values)


def test_smoothing_is_chosen_for_how_weights_are_rounded(rows: np.ndarray, weight: np.ndarray) -> None:
    """Feedback makes up for large weights where activations go together; rounding to the nearest does not."""
    rows = rows[:, :1] * np.geomspace(0.01, 10, WIDTH) + 0.001 * rows
    choice = choose_scales(measured(rows), [weight], None)
    assert choice.token.factors is not None
    assert not np.array_equal(choice.token.factors, choice.nearest.factors)

    def lost(scale: Scale) -> float:
        columns, steps = quantize_weights(scale.smoothed_weight(weight))
        return float(np.square(scale.rounded(rows) @ (columns * steps) - rows @ weight).sum())

    assert lost(choice.nearest) < lost(choice.token)


def test_a_silent_channel_does_not_drown_a_token_when_it_speaks(rows: np.ndarray, weight: np.ndarray) -> None:
    rows[:, 7] *= 100
    rows[:, 8] = 0
    scale = choose_scales(measured(rows), [weight], None).token
    assert scale.factors is not None
    rows[:, 8] = 1
    assert relative_error(scale, rows, weight) < 0.05


def test_even_channels_are_not_smoothed(rows: np.ndarray, weight: np.ndarray) -> None:
    assert choose_scales(measured(rows), [weight], None).token.factors is None


def test_tokens_far_beyond_the_first_batch_are_measured(rows: np.ndarray, tmp_path: Path) -> None:
    """Steps are chosen from the first batch; a channel that was silent there may have large levels after it."""
    first, second = rows.copy(), rows.copy()
    first[:, 3] = 0
    second[:, 3] *= 1e6
    meter = _Meter(tmp_path / "rows")
    for batch in (first, second):
        meter.add(batch, batch, 1)
    meter.add_far(rows, np.array([len(rows)]))
    measured, both = meter.result(), np.concatenate([first, second]).astype(np.float64)
    np.testing.assert_allclose(measured.gram, both.T @ both, rtol=1e-3, atol=1e-4 * np.abs(both.T @ both).max())
    assert measured.high[3] == max(0, second[:, 3].max())
    assert not list(tmp_path.iterdir()), "the tokens were kept"


def test_losses_of_many_channels_are_estimated_from_some(
    rows: np.ndarray, weight: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    gram = np.cov(np.cumsum(rows, axis=1), rowvar=False) + np.eye(WIDTH)
    whole = expected_losses([weight], gram)
    monkeypatch.setattr(rounding, "_CHANNELS", WIDTH // 2)
    some = expected_losses([weight], gram)
    assert whole[0] < some[0] < 2 * whole[0], "fewer channels make up for less"
    assert some[1] == whole[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scales_after_activation_functions(name: str, rows: np.ndarray, weight: np.ndarray) -> None:
    """They are always per token: a token of large values would leave few levels to the others."""
    scale = chosen(choose_scales(measured(rows), [weight], name))
    assert (scale.constant, scale.factors) == (None, None)
    assert scale.zero_point < SYMMETRIC


def test_no_value_of_gelu_is_clipped() -> None:
    from scipy.special import erf

    x = np.linspace(-6, 6, 20001)
    for values in (
        x * (1 + erf(x / np.sqrt(2))) / 2,
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    ):
        rows = np.stack([np.minimum(values, top) for top in (0.0, 0.1, 1.0, 6.0)]).astype(np.float32)
        scale = Scale(FUNCTIONS["Gelu"].zero_point, least=FUNCTIONS["Gelu"].least)
        step = np.maximum(rows.max(axis=1, keepdims=True), scale.least) / (255 - scale.zero_point)
        assert (np.abs(scale.rounded(rows) - rows) <= step / 2 * 1.001).all()


@pytest.mark.parametrize("longest", [3, 8, 256])
def test_texts_fit_the_model(longest: int) -> None:
    vocabulary = Vocabulary(50, (48,), (49,), longest)
    texts = wide_texts(vocabulary, 0)
    assert max(map(len, texts)) == longest
    assert min(map(len, texts)) == 3
    assert all((text[0], text[-1]) == (48, 49) and max(text) < 50 and min(text) >= 0 for text in texts)
    assert any(len(set(text)) == 3 and len(text) >= longest / 5 for text in texts)


def test_texts_to_compare_on_are_not_those_of_the_calibration(tiny_bundle: Path) -> None:
    tokenizer = Tokenizer(tiny_bundle / "tokenizer.json", 32)
    vocabulary = Vocabulary.of(tokenizer, 1000, 512)
    assert vocabulary.longest == 32
    (ids,) = tokenizer.tokenize(["a"])
    assert [*vocabulary.prefix, ids[len(vocabulary.prefix)], *vocabulary.suffix] == ids
    known = {tuple(text) for text in wide_texts(vocabulary, 0)}
    assert not known & {tuple(text) for text in far_texts(tokenizer, vocabulary) if len(text) > 3}
    bare = bare_texts(vocabulary)
    assert {len(text) for text in bare} == {1, 2, 3, 4, 5, 8, 13}
    assert sum(text[0] not in vocabulary.prefix for text in bare) > 30


def test_texts_without_tokens_are_left_out(tmp_path: Path) -> None:
    """A tokenizer without special tokens gives none for an empty text."""
    words = Whole(WordLevel({"a": 0, "house": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", 32)
    assert tokenizer.tokenize([""]) == [[]]
    vocabulary = Vocabulary(3, (), (), 32)
    model = graph_of("(int64[b, n] input_ids) => (int64[b, n] y) { y = Identity(input_ids) }", {})
    texts = calibration_texts(model, tokenizer, ["", "a house"], vocabulary, 0)
    assert texts.sentences == [[0, 1]]
    assert all(texts.rows)


def test_tokens_with_extreme_embeddings_are_found() -> None:
    table = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    table[123, 4], table[7, 1] = 60, -60
    model = graph_of("(int64[b, n] input_ids) => (float[b, n, 8] y) { y = Gather(table, input_ids) }", {"table": table})
    texts = extreme_texts(model, Vocabulary(1000, (), (), 10))
    found = {token for text in texts for token in text}
    assert {123, 7} <= found
    assert len(found) <= 16
    without = graph_of("(float[b, 8] vectors) => (float[b, 8] y) { y = Neg(vectors) }", {})
    assert extreme_texts(without, Vocabulary(10, (), (), 10)) == []
