"""Test that a text without a vector, or with one that is not finite, is named, and costs no other text."""

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.bundles import add_token_without_row, add_unwhitened_output, copy_bundle, edit_initializer
from support.cli import invoke, refused
from whiten import BundleError, Encoder, VectorWhitener
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.console import whiten
from whiten_runtime.errors import NoVectorError, RunError
from whiten_runtime.inference.engine import Engine, too_large
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.inference.vectors import check_computed
from whiten_runtime.ort.session import SessionOptions

BAD = "see <image> here"
SHORTEN = "shorten it, or raise the limit: memory_limit of Encoder, memory-limit of whiten serve"
GOOD = ("a dog", "the cat", "the fox runs", "a bird in the sky, and nothing else")


@pytest.fixture(scope="module", params=["bundle-v1", "bundle-v1-int8", "bundle-v1-published"])
def broken(request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = copy_bundle(golden / request.param, tmp_path_factory.mktemp("broken"))
    add_token_without_row(bundle, "<image>")
    return bundle


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow), 4])
def encoder(request: pytest.FixtureRequest, broken: Path) -> Encoder:
    return Encoder(broken, threads=request.param)


def test_text_is_named_by_its_index(encoder: Encoder, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        NoVectorError, match=r"^texts\[1\] has no vector \(onnxruntime failed: .*; leave it out"
    ) as error:
        encoder.encode(["fine", BAD, "fine"])
    assert error.value.index == 1
    assert list(error.value.failures) == [1]
    with pytest.raises(NoVectorError, match=r"^texts\[0\] "):
        encoder.encode(BAD)
    with pytest.raises(NoVectorError, match=r"^texts\[5000\] .*, and 2 more such texts; "):
        encoder.encode([*GOOD * 1250, BAD, *GOOD * 100, BAD, BAD])
    assert capfd.readouterr().err == ""


def test_text_of_a_later_window_comes_with_its_words(encoder: Encoder) -> None:
    texts = [*GOOD * 1250, BAD]
    with pytest.raises(NoVectorError) as error:
        for _ in encoder._embedder.windows(iter(texts)):
            pass
    assert (error.value.index, error.value.text) == (5000, BAD)


@pytest.fixture(scope="module")
def opened(broken: Path) -> Iterator[Encoder]:
    with Encoder(broken, threads=2) as encoder:
        yield encoder


@settings(deadline=None, max_examples=25)
@given(places=st.sets(st.integers(0, 59), min_size=1), size=st.none() | st.integers(1, 8))
def test_every_text_without_a_vector_is_found(opened: Encoder, places: set[int], size: int | None) -> None:
    texts = [BAD if index in places else GOOD[index % 4] for index in range(60)]
    ids = opened._tokenizer.tokenize(texts)
    vectors: dict[int, NDArray[np.float32]] = {}

    def collect() -> None:
        for group, rows in opened._engine._batches(ids, 0, (OUTPUT,), size):
            vectors.update(zip(group.tolist(), rows, strict=True))

    with pytest.raises(NoVectorError) as error:
        collect()
    assert set(error.value.failures) == places
    assert set(vectors) == set(range(60)) - places
    wanted = opened.encode(list(GOOD))
    for index, row in vectors.items():
        np.testing.assert_allclose(row, wanted[index % 4], atol=2e-5 * np.linalg.norm(row))


def test_failure_of_the_engine_names_no_text(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Encoder(broken, threads=1) as encoder:
        runs = 0

        def fail(self: Engine, feed: object, *values: object) -> NDArray[np.float32]:
            nonlocal runs
            runs += 1
            raise RunError("onnxruntime failed: the device was lost")

        monkeypatch.setattr(Engine, "run_feed", fail)
        with pytest.raises(RunError, match=r"^onnxruntime failed: the device was lost$"):
            encoder.encode(list(GOOD) * 100)
        assert runs == 2  # the batch, and a text of one token
        with pytest.raises(RunError, match=r"^onnxruntime failed: the device was lost$"):
            encoder.encode(GOOD[0])


@pytest.mark.parametrize("text", [[BAD], [*GOOD, BAD]])
def test_text_is_found_by_an_engine_of_another_output(golden: Path, tmp_path: Path, text: list[str]) -> None:
    """As a whitening is fitted on: the graph's own output is not among those of such an engine's session."""
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    add_token_without_row(bundle, "<image>")
    graph = tmp_path / "bare.onnx"
    strip_outputs(bundle / MODEL_FILE, graph, UNWHITENED_OUTPUT)
    ids = Encoder(bundle)._tokenizer.tokenize(text)
    engine = open_engine(graph, 0, SessionOptions(threads=2))
    with pytest.raises(NoVectorError) as error:
        engine.run(ids, outputs=(UNWHITENED_OUTPUT,))
    assert set(error.value.failures) == {len(text) - 1}


def strip_outputs(source: Path, target: Path, kept: str) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(source)
    del model.graph.output[:]
    model.graph.output.extend(value for value in model.graph.value_info if value.name == kept)
    onnx.save(model, target)


def test_want_of_memory_is_no_fault_of_a_text(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Encoder(broken, threads=1) as encoder:
        whole = Engine.run_feed

        def fail(self: Engine, feed: dict[str, NDArray[np.int64]], *values: object) -> NDArray[np.float32]:
            if feed["input_ids"].shape[1] > 8:
                raise RunError("onnxruntime failed: std::bad_alloc")
            return whole(self, feed, *values)

        monkeypatch.setattr(Engine, "run_feed", fail)
        with pytest.raises(RunError, match="bad_alloc"):
            encoder.encode(["a dog", "a dog " * 20])


def test_batch_that_fails_only_as_a_whole_is_halved(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a whole batch may be lacking where that for its halves is there."""
    with Encoder(broken, threads=1) as encoder:
        wanted = encoder.encode(list(GOOD))
        whole = Engine.run_feed

        def fail(self: Engine, feed: dict[str, NDArray[np.int64]], *values: object) -> NDArray[np.float32]:
            if len(feed["input_ids"]) > 1:
                raise RunError("onnxruntime failed: bad allocation")
            return whole(self, feed, *values)

        monkeypatch.setattr(Engine, "run_feed", fail)
        np.testing.assert_allclose(encoder.encode(list(GOOD)), wanted, atol=1e-5)


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), KeyError("x")])
def test_other_errors_are_not_those_of_a_text(
    broken: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    with Encoder(broken, threads=1) as encoder:
        monkeypatch.setattr(Engine, "run_feed", fail)
        with pytest.raises(type(error)):
            encoder.encode(list(GOOD))


def test_batch_names_the_only_text(broken: Path) -> None:
    with Encoder(broken, threads=1) as encoder:
        run = encoder._engine.run_batch
        ids = encoder._tokenizer.tokenize([BAD, GOOD[0]])
        with pytest.raises(NoVectorError, match=r"^texts\[0\] "):
            run(ids[:1])
        with pytest.raises(RunError, match="^onnxruntime failed"):
            run(ids)
        assert run(ids[1:]).shape == (1, encoder.dimension)


def test_error_can_be_pickled_and_moved() -> None:
    error = pickle.loads(pickle.dumps(NoVectorError({3: "has no vector (x)", 2: "has no vector (y)"})))
    assert str(error) == "texts[2] has no vector (y), and 1 more such texts; leave it out, or export the model again"
    assert str(error.moved(10)).startswith("texts[12] ")


def test_a_text_that_takes_too_much_memory_is_to_be_shortened() -> None:
    first = NoVectorError({0: too_large(8000, 3 * 10**9, 2 * 10**9)}).moved(1)
    error = copy.copy(pickle.loads(pickle.dumps(first)))
    assert error.advice == SHORTEN
    assert str(error) == (
        f"texts[1] has 8,000 tokens, which take about 3 GB, and texts may take 2 GB here (memory_limit); {SHORTEN}"
    )


@pytest.mark.parametrize("command", ["embed", "fit"])
def test_commands_give_the_advice_of_the_reason(
    command: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory_limit` is no end of the words of other reasons, such as an error of onnxruntime's."""

    def run(*_: object) -> None:
        raise NoVectorError({0: reasons[-1]})

    file, out = tmp_path / "texts.txt", tmp_path / "out"
    file.write_text("a dog\n" * 40)
    monkeypatch.setattr(Engine, "run_batch", run)
    options = {"embed": ["--input", file], "fit": ["--corpus", file, "-o", out]}
    reasons = list[str]()
    for reason, advice in (
        (too_large(8000, 3 * 10**9, 2 * 10**9), SHORTEN),
        ("has no vector (onnxruntime failed: memory_limit", "leave it out, or export the model again"),
        ("has no vector (onnxruntime failed: (memory_limit)", "leave it out, or export the model again"),
    ):
        reasons.append(reason)
        error = refused(command, tiny_bundle, *options[command], code=1)
        assert "texts.txt: line 1 has " in error
        assert error.rstrip().endswith(f"; {advice}")


FILES = {
    "lines.txt": "\n".join([*GOOD, "", BAD, "end"]) + "\n",
    "lines.jsonl": "\n\n".join(json.dumps({"text": text}) for text in (*GOOD, BAD)),
    "lines.csv": '"n","text"\n1,"two\nlines"\n2,"' + BAD + '"\n',
    "lines.tsv": f"n\ttext\n1\ta dog\n2\t{BAD}\n",
}
LINES = {"lines.txt": 6, "lines.jsonl": 9, "lines.csv": 4, "lines.tsv": 3}


@pytest.mark.parametrize("name", FILES)
def test_embed_names_the_line(broken: Path, tmp_path: Path, name: str) -> None:
    file, out = tmp_path / name, tmp_path / "vectors.npy"
    file.write_text(FILES[name], encoding="utf-8")
    line = refused("embed", broken, "--input", file, "--out", out, code=1)
    assert line.startswith(f"error: {file}: line {LINES[name]} has no vector (onnxruntime failed: ")
    assert not out.exists()


def test_embed_names_the_row_of_a_parquet_file(broken: Path, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": [*GOOD, BAD]}), file, row_group_size=2)
    assert refused("embed", broken, "--input", file, code=1).startswith(f"error: {file}: row 5 has no vector ")


def test_embed_names_the_line_of_standard_input(broken: Path) -> None:
    result = invoke(whiten, "embed", broken, "-", stdin="\n".join([*GOOD, BAD]))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: standard input: line 5 has no vector ")


def test_refit_names_the_line_of_the_corpus(broken: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    bundle = copy_bundle(broken, tmp_path)
    if read_manifest(bundle).precision == "fp32":
        add_unwhitened_output(bundle)
    file = tmp_path / "corpus.txt"
    file.write_text(
        "\n\n".join([*[f"{text} {number}" for number in range(20) for text in GOOD], BAD]), encoding="utf-8"
    )
    line = refused("refit", bundle, "--corpus", file, "--out", tmp_path / "refitted", code=1)
    assert line.startswith(f"error: {file}: line 161 has no vector (onnxruntime failed: ")
    assert repr(BAD) in line
    assert not (tmp_path / "refitted").exists()


TEXTS = ["a dog", "the cat", "the fox runs", "a bird"]
TOKENS = {
    "bundle-v1": "network.embeddings.word_embeddings.weight",
    "bundle-v1-int8": "quantized.network.embeddings.word_embeddings.weight.scale",
}


@pytest.fixture(params=[*TOKENS.items()], ids=TOKENS)
def poisoned(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> Path:
    """A bundle whose vector of a text with one of its tokens, that of texts[2] alone, is not finite."""
    name, table = request.param
    bundle = copy_bundle(golden / name, tmp_path)
    with Encoder(bundle) as encoder:
        rows = encoder._tokenizer.tokenize(TEXTS)
    token = next(token for token in rows[2] if not any(token in row for row in (*rows[:2], rows[3])))

    def poison(values: NDArray[np.float32]) -> NDArray[np.float32]:
        values[token] = np.nan
        return values

    edit_initializer(bundle, table, poison)
    return bundle


CALLS: dict[str, Callable[[Encoder, list[str]], Any]] = {
    "encode": lambda encoder, texts: encoder.encode(texts),
    "encode, normalised": lambda encoder, texts: encoder.encode(texts, normalize_embeddings=True),
    "encode, one by one": lambda encoder, texts: encoder.encode(texts, batch_size=1),
    "encode_query": lambda encoder, texts: encoder.encode_query(texts),
    "encode_document": lambda encoder, texts: encoder.encode_document(texts),
    "encode_iter": lambda encoder, texts: list(encoder.encode_iter(texts)),
    "binary": lambda encoder, texts: encoder.encode(texts, precision="binary"),
    "int8": lambda encoder, texts: encoder.encode(texts, precision="int8"),
    "encode_both": lambda encoder, texts: encoder.encode_both(texts) if encoder.manifest.precision == "int8" else None,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_text_of_a_vector_that_is_not_finite_is_named(
    poisoned: Path, call: Callable[[Encoder, list[str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Encoder(poisoned) as encoder:
        if call(encoder, TEXTS[:2]) is None:
            pytest.skip("this bundle has one output")
        with pytest.raises(BundleError, match=r"texts\[2\] gets a vector .* not finite; leave it out"):
            call(encoder, TEXTS)
        with pytest.raises(BundleError, match=r"texts\[4099\] gets"):
            call(encoder, [TEXTS[0]] * 4099 + TEXTS[2:])
        with pytest.raises(BundleError, match=r"texts\[0\] gets"):
            encoder.encode(TEXTS[2])


def test_vector_whose_result_is_not_finite_is_named(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1-vectors", tmp_path)
    edit_initializer(bundle, "whitening.weight", lambda weight: weight * 1e20)
    with VectorWhitener(bundle) as whitener:
        rows = np.zeros((3, whitener.width), np.float32)
        rows[1] = 1e30
        with pytest.raises(BundleError, match=r"vectors\[1\] gets"):
            whitener.transform(rows)
        assert np.isfinite(whitener.transform(rows[:1])).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_coordinate_is_looked_at(value: float) -> None:
    for row in range(5):
        for column in range(7):
            vectors = np.ones((5, 7), np.float32)
            vectors[row, column] = value
            with pytest.raises(BundleError, match=rf"texts\[{row}\] gets"):
                check_computed(vectors, "texts")


def test_large_numbers_are_finite() -> None:
    check_computed(np.full((3, 4), np.finfo(np.float32).max, np.float32), "texts")
    check_computed(np.empty((0, 4), np.float32), "texts")
