"""Test passages that are embedded in one pass over their text: against numpy on the states of tokens, and encode()."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.bundles import change_bundle, copy_bundle, edit_graph, rewrite_file
from support.corpus import NASTY, sentences
from support.vectors import ROUNDING, worst
from whiten import BundleError, Encoder, TextError, TooLongError, UsageError, WhitenError
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE, MODEL_FILE
from whiten_runtime.inference.passages import with_token_weights
from whiten_runtime.ort.session import SessionOptions, create_session

TEXT = "A heron stands in the reeds. The bank raised its rates. It rains."
SHORT = "A heron. It rains."
SPANS = [(0, 28), (29, 55), (56, 65)]


def states_of(bundle: Path, encoder: Encoder, text: str, layers: list[str], tmp_path: Path) -> list[Any]:
    """Return the hidden states of a text, each float64 [tokens, d], from a copy of the graph with more outputs."""
    model = onnx.load(bundle / MODEL_FILE)
    for layer in layers:
        model.graph.output.append(onnx.helper.make_tensor_value_info(layer, onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "states.onnx")
    ids = np.array([[token.id for token in encoder.tokens(text)]], np.int64)
    session = create_session(tmp_path / "states.onnx", SessionOptions(threads=1))
    states = session.run(layers, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return [state[0].astype(np.float64) for state in states]


def test_equal_to_numpy_on_the_states_of_tokens(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    first, last = states_of(tiny_bundle, tiny, TEXT, ["hidden_states.1", "hidden_states.4"], tmp_path)
    tokens = tiny.tokens(TEXT)
    stored = {
        value.name: onnx.numpy_helper.to_array(value) for value in onnx.load(tiny_bundle / MODEL_FILE).graph.initializer
    }
    want = []
    for start, end in SPANS:
        chosen = [token.special or start < token.end <= end for token in tokens]
        pooled = (first[chosen].mean(axis=0) + last[chosen].mean(axis=0)) / 2
        want.append((pooled - stored["whitening.mean"]) @ stored["whitening.weight"])
    vectors = tiny.encode_passages(TEXT, SPANS)
    assert (vectors.shape, vectors.dtype) == ((3, tiny.dimension), np.dtype(np.float32))
    np.testing.assert_allclose(vectors, np.array(want), rtol=0, atol=2e-5)
    assert worst(vectors, tiny.encode([TEXT[start:end] for start, end in SPANS])) > 1e-3  # the context counts


@pytest.mark.parametrize("prompt", ["", "\ud83d\ude00: ", "a\ud83d\ude00{text}\ude00"])
def test_spans_of_a_text_with_surrogate_pairs(tiny: Encoder, prompt: str) -> None:
    whole = prompt.replace("\ud83d\ude00", "😀").replace("\ude00", "\ufffd")
    want = tiny.encode_passages("\ufffd 😀 a man", [(4, 5), (6, 9)], prompt=whole)
    vectors = tiny.encode_passages("\ude00 \ud83d\ude00 a man", [(5, 6), (7, 10)], prompt=prompt)
    np.testing.assert_array_equal(vectors, want)


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-int8", "bundle-v1-published"])
@pytest.mark.parametrize(
    "options", [{}, {"normalize_embeddings": True}, {"precision": "binary"}, {"prompt": "query: "}], ids=str
)
def test_one_span_of_the_whole_text_is_the_text(golden: Path, name: str, options: Any) -> None:
    with Encoder(golden / name) as encoder:
        for text in [
            text
            for text in (TEXT, SHORT, *sentences(5), *NASTY)
            if text and len(encoder.tokens("query: " + text)) <= encoder.max_seq_length
        ]:
            whole = encoder.encode_passages(text, [(0, len(text))], **options)[0]
            want = encoder.encode(text, **options)
            assert whole.dtype == want.dtype
            if want.dtype == np.float32:
                assert worst(whole[None], want[None]) < ROUNDING, text
            else:
                np.testing.assert_array_equal(whole, want)


def test_spans_may_overlap_repeat_and_come_as_an_array(tiny: Encoder) -> None:
    several = tiny.encode_passages(TEXT, np.array([(29, 55), (0, 65), (29, 55)]))
    np.testing.assert_array_equal(several[0], several[2])
    assert worst(several[1:2], tiny.encode([TEXT])) < ROUNDING
    assert worst(several[:1], tiny.encode_passages(TEXT, iter([(29, 55)]))) < ROUNDING
    assert tiny.encode_passages(TEXT, []).shape == (0, tiny.dimension)
    assert tiny.encode_passages(TEXT, SPANS, truncate_dim=3).shape == (3, 3)


def test_token_is_of_the_passage_with_its_last_character(tiny: Encoder) -> None:
    """A boundary that is a blank, or in front of one, and a passage of blanks alone, which has the special tokens."""
    before, behind = tiny.encode_passages(TEXT, [(29, 55), (28, 56)])
    assert worst(before[None], behind[None]) < ROUNDING
    blank = tiny.encode_passages(TEXT, [(28, 29)])
    assert np.isfinite(blank).all()
    assert blank.any()
    np.testing.assert_array_equal(tiny.encode_passages(TEXT, [(7, 7)]), blank)
    assert worst(tiny.encode_passages("", [(0, 0)]), tiny.encode([""])) < ROUNDING


def test_prompts_are_of_every_passage_or_of_none(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    """As `encode` pools them; a template stands around the text."""
    for prompt in ("query: ", 'Summarize "{text}" in one word:'):
        whole = tiny.encode_passages(TEXT, [(0, len(TEXT))], prompt=prompt)
        assert worst(whole, tiny.encode([TEXT], prompt=prompt)) < ROUNDING, prompt
        part = tiny.encode_passages(TEXT, [SPANS[1]], prompt=prompt)
        assert worst(part, tiny.encode_passages(TEXT, [SPANS[1]])) > 1e-4


def test_prompts_that_are_left_out_of_the_pooling(tiny_bundle: Path, tmp_path: Path) -> None:
    def attend_to_prompts(model: Any) -> None:
        """Let the network see a mask of 2, and the pooling only one of 1, as exports for such models do."""
        nodes, helper = model.graph.node, onnx.helper
        one = onnx.numpy_helper.from_array(np.array(1, np.int64), "one")
        model.graph.initializer.append(one)
        for node in nodes:
            pools = node.name == "whiten_0"
            for index, name in enumerate(node.input):
                if name == "attention_mask":
                    node.input[index] = "pooled" if pools else "attended"
        nodes.insert(0, helper.make_node("Equal", ["attention_mask", "one"], ["pooled"]))
        nodes.insert(0, helper.make_node("Min", ["attention_mask", "one"], ["attended"]))

    bundle = copy_bundle(tiny_bundle, tmp_path, include_prompt=False)
    edit_graph(bundle, attend_to_prompts)
    with Encoder(bundle) as encoder:
        whole = encoder.encode_passages(TEXT, [(0, len(TEXT))], prompt="query: ")
        assert worst(whole, encoder.encode([TEXT], prompt="query: ")) < ROUNDING
        assert worst(whole, encoder.encode([TEXT])) > 1e-4


def test_weights_beside_the_graph(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    model = onnx.load(bundle / MODEL_FILE)
    location = Path(EXTERNAL_DATA_FILE).name
    onnx.save_model(model, bundle / MODEL_FILE, save_as_external_data=True, location=location, size_threshold=1024)
    for file in (MODEL_FILE, EXTERNAL_DATA_FILE):
        rewrite_file(bundle, file, (bundle / file).read_bytes())
    with Encoder(bundle) as encoder:
        np.testing.assert_array_equal(encoder.encode_passages(TEXT, SPANS), tiny.encode_passages(TEXT, SPANS))


def test_pickled_and_closed(tiny_bundle: Path, tiny: Encoder) -> None:
    encoder = pickle.loads(pickle.dumps(tiny))
    np.testing.assert_array_equal(encoder.encode_passages(TEXT, SPANS), tiny.encode_passages(TEXT, SPANS))
    encoder.close()
    with pytest.raises(WhitenError, match="was closed"):
        encoder.encode_passages(TEXT, SPANS)
    with Encoder(tiny_bundle) as fresh:
        pass
    with pytest.raises(WhitenError, match="was closed"):
        fresh.encode_passages(TEXT, SPANS)


@pytest.mark.parametrize(
    ("text", "spans", "kind", "named"),
    [
        (TEXT, [(0, 5), (5, 4)], UsageError, r"spans\[1\]"),
        *((TEXT, [span], UsageError, r"spans\[0\]") for span in ((-3, 5), (0, 66), (0, 1, 2), (0.0, 5.0), "ab", 0)),
        (TEXT, 5, UsageError, "spans"),
        ("", [(0, 1)], UsageError, r"spans\[0\]"),
        ([TEXT], SPANS, TextError, "text"),
        ("heron " * 400, [(0, 5)], TooLongError, "tokens"),
        (" " * 1_000_000, [(0, 5)], TooLongError, "1000000 characters"),
    ],
)
def test_wrong_arguments_are_one_line(
    tiny: Encoder, text: Any, spans: Any, kind: type[WhitenError], named: str
) -> None:
    with pytest.raises(kind, match=named) as raised:
        tiny.encode_passages(text, spans)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("pooling", ["cls", "last", "max", "weightedmean", "cls+mean", "sif"])
def test_other_poolings_are_refused(tiny_bundle: Path, tmp_path: Path, pooling: str) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    change_bundle(bundle, pooling=pooling)
    with Encoder(bundle) as encoder, pytest.raises(UsageError, match="mean"):
        encoder.encode_passages(TEXT, SPANS)


def test_graph_of_another_program_is_refused(golden: Path) -> None:
    with pytest.raises(BundleError, match="mean"):
        with_token_weights((golden / "bundle-v1-vectors" / MODEL_FILE).read_bytes())
