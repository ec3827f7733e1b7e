"""Test single-text requests with CUDA graphs, in arrays at fixed addresses. On the CPU, all but the recording runs."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.corpus import sentences
from whiten import Encoder, ProviderError, UsageError, WhitenError
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.inference import gpu as recorded
from whiten_runtime.inference import loading
from whiten_runtime.inference.engine import Engine
from whiten_runtime.inference.gpu import device_of, graph_lengths, with_cuda_graph
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.ort.session import CUDA_PROVIDER, SessionOptions

CUDA, CPU = CUDA_PROVIDER, "CPUExecutionProvider"


@pytest.fixture(autouse=True)
def _cpu_counts_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "NVIDIA", {CPU: "cpu"})


@pytest.fixture
def made(tiny_bundle: Path) -> Engine:
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1))
    made.record(48, "fp32")
    return made


def test_vectors_equal_those_of_a_plain_session(made: Engine, tiny_bundle: Path) -> None:
    plain = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1))
    texts = [[5 + (3 * length + place) % 90 for place in range(length)] for length in range(1, 49)]
    # Shorter and longer texts in turn: nothing of the previous text may be left in the arrays.
    got = np.concatenate([made.run([text]) for pair in zip(texts, reversed(texts), strict=True) for text in pair])
    want = np.concatenate([plain.run([text]) for pair in zip(texts, reversed(texts), strict=True) for text in pair])
    assert GATES["fp32"].passes(compare(got, want))


def test_vector_does_not_change_with_the_next_text(made: Engine) -> None:
    first = made.run([[5, 6, 7]])
    kept = first.copy()
    made.run([[9, 8, 7]])
    assert (first == kept).all()


def test_empty_texts_are_run_and_long_texts_are_not_recorded(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.isfinite(made.run([[]])).all()
    made.record(16, "fp32")
    monkeypatch.setattr(recorded.CudaGraphRunner, "_run", lambda *_: pytest.fail("not recorded"))
    assert made.run([[5] * 17]).shape == (1, made.width_of("sentence_embedding"))


def test_threads_get_the_vectors_of_their_own_texts(made: Engine) -> None:
    texts = [[5 + place for place in range(length)] for length in range(1, 21)]
    want = [made.run([text]) for text in texts]
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: [made.run([text]) for text in texts], range(20)):
            np.testing.assert_array_equal(np.concatenate(found), np.concatenate(want))


def test_closed_engine_is_refused(made: Engine) -> None:
    made.close()
    with pytest.raises(WhitenError, match="was closed"):
        made.run([[5]])


def test_failed_recording_is_a_provider_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise WhitenError("onnxruntime failed: operation not permitted when stream is capturing")

    monkeypatch.setattr(recorded.CudaGraphRunner, "run", fail)
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1))
    with pytest.raises(ProviderError, match="48 tokens"):
        made.record(48, "fp32")


def test_replay_that_gives_another_vector_is_a_provider_error(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded.CudaGraphRunner._run
    monkeypatch.setattr(recorded.CudaGraphRunner, "_run", lambda self, slot, feed: run(self, slot, feed)[:, ::-1])
    made = open_engine(tiny_bundle / MODEL_FILE, 0, SessionOptions(threads=1))
    with pytest.raises(ProviderError, match="CUDA graph"):
        made.record(48, "fp32")


def test_provider_option_enable_cuda_graph_is_refused(tiny_bundle: Path) -> None:
    for value in (1, "1", True):
        with pytest.raises(UsageError, match="cuda_graphs=True"):
            Encoder(tiny_bundle, [(CUDA, {"enable_cuda_graph": value})])


def test_lengths_of_recordings() -> None:
    assert graph_lengths(512) == (8, 16, 32, 64, 128)
    assert graph_lengths(128) == (8, 16, 32, 64, 128)
    assert graph_lengths(48) == (8, 16, 32, 48)
    assert graph_lengths(5) == (5,)


def test_session_options_of_recordings() -> None:
    options = SessionOptions(((CUDA, {"device_id": 1, "gpu_mem_limit": 1 << 30}), CPU), threads=2, spinning=False)
    assert not with_cuda_graph(options).spinning
    (name, given), other = with_cuda_graph(options).providers
    assert (name, other) == (CUDA, CPU)
    assert given == {**options.providers[0][1], "enable_cuda_graph": 1}
    assert device_of(options.providers[0]) == ("cuda", 1)
    assert device_of(CUDA) == ("cuda", 0)
    assert device_of(CPU) == device_of("TensorrtExecutionProvider") == ("cpu", 0)


def test_encoder_with_cuda_graphs_gives_the_same_vectors(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cuda_graphs is for CUDAExecutionProvider, not CPUExecutionProvider"):
        Encoder(tiny_bundle, cuda_graphs=True)
    monkeypatch.setattr("whiten_runtime.encoder.CUDA_PROVIDER", CPU)
    texts = ["", "a", *sentences(10)]
    with Encoder(tiny_bundle) as plain, Encoder(tiny_bundle, cuda_graphs=True) as made:
        assert GATES["fp32"].passes(made.verify())
        want = plain.encode(texts)
        assert GATES["fp32"].passes(compare(np.stack([made.encode(text) for text in texts]), want))
        made.warmup()
        with pickle.loads(pickle.dumps(made)) as again:
            assert again._engine._cuda_graphs is not None
