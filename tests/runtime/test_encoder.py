"""The library as services use it."""

import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.bundles import copy_bundle
from support.checkpoints import MAX_LENGTH, WIDTH, sentences
from whiten_runtime import Encoder, ProviderError, TextError, TooLongError, UsageError, WhitenError
from whiten_runtime.parity import GATES

ROUNDING = 1e-4
"""Whitening multiplies float32 rounding by λ^-½, and a random network has small eigenvalues: the gate's bound."""

NASTY = (
    "",
    " ",
    "\t\n\r",
    "\x00",
    "a\x00b",
    "\ud83d lone",
    "lone \udc80 too",
    "👩‍👩‍👧‍👦🐬",
    "שלום עולם مرحبا",
    "word " * 200_000,
    "x" * 1_000_000,
    "[CLS] [SEP] [PAD]",
    "\ufeffbom",
    "e\u0301\u200b\u202e",
)


def worst(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference relative to the norm."""
    return float((np.abs(a - b).max(axis=-1) / np.linalg.norm(b, axis=-1)).max())


def test_shapes_and_types(tiny: Encoder) -> None:
    assert tiny.dimension == WIDTH
    assert tiny.max_seq_length == MAX_LENGTH
    one, several, none = tiny.encode("a text"), tiny.encode(["a text", ""]), tiny.encode([])
    assert (one.shape, several.shape, none.shape) == ((WIDTH,), (2, WIDTH), (0, WIDTH))
    assert {array.dtype for array in (one, several, none)} == {np.dtype(np.float32)}
    assert np.isfinite(several).all()
    np.testing.assert_array_equal(tiny.encode(iter(["a text", ""])), several)
    np.testing.assert_array_equal(tiny.encode(np.array(["a text", ""])), several)


def test_order_and_batch_composition_do_not_matter(tiny: Encoder) -> None:
    texts = sentences(300)
    together = tiny.encode(texts)
    alone = np.stack([tiny.encode(text) for text in texts])
    order = np.random.default_rng(0).permutation(len(texts))
    assert worst(together, alone) < ROUNDING
    assert worst(tiny.encode([texts[i] for i in order], batch_size=7), alone[order]) < ROUNDING


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec=None), max_size=80), min_size=1, max_size=8), st.integers(1, 5))
def test_any_text_has_its_own_vector(tiny: Encoder, texts: list[str], batch_size: int) -> None:
    vectors = tiny.encode(texts, batch_size=batch_size)
    assert np.isfinite(vectors).all()
    assert worst(vectors, np.stack([tiny.encode(text) for text in texts])) < ROUNDING


def test_nasty_texts(tiny: Encoder) -> None:
    vectors = tiny.encode(NASTY)
    assert np.isfinite(vectors).all()
    np.testing.assert_array_equal(tiny.encode("\ud83d lone"), tiny.encode("\ufffd lone"))


def test_long_texts_are_cut_counted_or_refused(tiny_bundle: Path) -> None:
    text = "one two three " * 50
    with Encoder(tiny_bundle) as encoder:
        assert encoder.truncated == 0
        encoder.encode(["short", text, text])
        assert encoder.truncated == 2
        count = encoder.token_count(text)
        assert encoder.token_count(["", text]) == [2, count]
        with pytest.raises(TooLongError, match=rf"texts\[1\] has {count} tokens, but the bundle takes {MAX_LENGTH}"):
            encoder.encode(["short", text], truncate=False)
        np.testing.assert_array_equal(encoder.encode("short", truncate=False), encoder.encode("short"))


def test_streams_are_embedded_in_bounded_memory_and_in_order(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whiten_runtime.embedder.WINDOW", 16)
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


def test_a_stream_names_what_is_wrong_in_it(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whiten_runtime.embedder.WINDOW", 16)
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


@pytest.mark.parametrize("bad", [None, 7, b"bytes", 1.5, ["nested"]])
def test_what_is_not_a_text_is_named(tiny: Encoder, bad: object) -> None:
    with pytest.raises(TextError, match=rf"texts\[2\] is {type(bad).__name__}"):
        tiny.encode(["a", "b", bad])  # type: ignore[list-item]


@pytest.mark.parametrize("bad", [None, 7, b"bytes"])
def test_what_is_no_list_of_texts(tiny: Encoder, bad: object) -> None:
    with pytest.raises(TextError, match="wanted a str or an iterable of str"):
        tiny.encode(bad)  # type: ignore[arg-type]


def test_normalize_and_truncate_dim(tiny: Encoder) -> None:
    texts = sentences(20)
    full = tiny.encode(texts)
    short = tiny.encode(texts, truncate_dim=8)
    np.testing.assert_array_equal(short, full[:, :8])
    unit = tiny.encode(texts, truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit, short / np.linalg.norm(short, axis=1, keepdims=True), rtol=1e-6)
    for bad in (0, -1, WIDTH + 1):
        with pytest.raises(UsageError, match=f"truncate_dim is {bad}"):
            tiny.encode(texts, truncate_dim=bad)
    for bad in (0, 2.5, "8"):
        with pytest.raises(UsageError, match="batch_size is"):
            tiny.encode(texts, batch_size=bad)  # type: ignore[arg-type]
    np.testing.assert_array_equal(tiny.encode(texts, truncate_dim=np.int64(8)), short)


def test_similarity(tiny: Encoder) -> None:
    a, b = tiny.encode(sentences(5)), tiny.encode(sentences(3))
    scores = tiny.similarity(a, b)
    assert scores.shape == (5, 3)
    np.testing.assert_allclose(np.diag(scores[:3]), 1, rtol=1e-5)
    assert tiny.similarity(a[0], b[0]).shape == (1, 1)
    assert tiny.similarity(np.zeros(WIDTH), a[0]) == 0
    with pytest.raises(UsageError, match="32 and 8 dimensions"):
        tiny.similarity(a, b[:, :8])


def test_verify_passes_and_notices(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    counted = tiny.truncated
    agreement = tiny.verify()
    assert tiny.truncated == counted
    assert GATES["fp32"].passes(agreement)
    assert agreement.vectors >= 60
    from safetensors.numpy import load_file, save

    from support.bundles import rewrite_file

    copy = copy_bundle(tiny_bundle, tmp_path)
    vectors = load_file(copy / "probes.safetensors")
    vectors["embeddings"][3, 1] += 0.01 * np.linalg.norm(vectors["embeddings"][3])
    rewrite_file(copy, "probes.safetensors", save(vectors))
    assert Encoder(copy).verify().max_difference > 1e-3


def test_progress_bar_goes_to_stderr(tiny: Encoder, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.encode(["a", "b"], show_progress_bar=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("providers", "message"),
    [
        (["CUDAExecutionProvider"], "not available here.*whiten\\[gpu\\]"),
        (["NoSuchProvider"], "'NoSuchProvider' is not available here, only .*CPUExecutionProvider"),
    ],
)
def test_a_provider_that_is_not_there_is_an_error(tiny_bundle: Path, providers: list[str], message: str) -> None:
    with pytest.raises(ProviderError, match=message):
        Encoder(tiny_bundle, providers=providers)


def test_a_provider_that_drops_out_is_an_error(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    listed = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        Encoder(tiny_bundle, providers=["CUDAExecutionProvider"])


def test_options_that_cannot_be(tiny_bundle: Path) -> None:
    for threads in (0, -1, 2.5, "2", True):
        with pytest.raises(UsageError, match="threads"):
            Encoder(tiny_bundle, threads=threads)  # type: ignore[arg-type]
    for provider in (None, ("CPUExecutionProvider",), ("CPUExecutionProvider", "x")):
        with pytest.raises(UsageError, match="neither a name nor"):
            Encoder(tiny_bundle, providers=[provider])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="providers is the string"):
        Encoder(tiny_bundle, providers="CPUExecutionProvider")
    with pytest.raises(UsageError, match="providers is empty"):
        Encoder(tiny_bundle, providers=[])


def test_provider_with_options(tiny_bundle: Path) -> None:
    with Encoder(tiny_bundle, providers=[("CPUExecutionProvider", {"use_arena": "0"})], threads=1) as encoder:
        assert encoder.providers == ["CPUExecutionProvider"]
        assert encoder.encode("text").shape == (WIDTH,)


def test_closed(tiny_bundle: Path) -> None:
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


def test_pickle(tiny_bundle: Path) -> None:
    encoder = Encoder(tiny_bundle, threads=1)
    stream = io.BytesIO()
    pickle.dump(encoder, stream)
    assert len(stream.getvalue()) < 2000
    copy = pickle.loads(stream.getvalue())
    np.testing.assert_array_equal(copy.encode("text"), encoder.encode("text"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes(tiny: Encoder, method: str) -> None:
    texts = sentences(40)
    want = tiny.encode(texts)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for got in pool.map(tiny.encode, [texts, texts, texts]):
            assert worst(got, want) < ROUNDING


def _python(code: str, bundle: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as users do: outside CI, where onnxruntime would behave better than it does for them."""
    kept = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("HF_")}
    command = [sys.executable, "-c", code, str(bundle)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=kept, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


PRELOADED = """
import os, sys, numpy as np
from whiten_runtime import Encoder
encoder = Encoder(sys.argv[1], threads=2)
used, unused = encoder.encode(["a text"] * 50), Encoder(sys.argv[1], threads=2)
child = os.fork()
if child == 0:
    assert np.allclose(encoder.encode(["a text"] * 50), used)
    sys.exit(7)  # the way a worker ends: destructors run
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert np.allclose(encoder.encode(["a text"] * 50), used)
print("done")
"""


def test_a_forked_worker_of_a_preloaded_service_works_and_ends(tiny_bundle: Path) -> None:
    result = _python(PRELOADED, tiny_bundle)
    assert result.stdout == "done\n", result.stderr


REPLACED = """
import os, shutil, sys
from pathlib import Path
from whiten_runtime import Encoder, IntegrityError
bundle = Path(sys.argv[1])
os.chdir(bundle.parent)
encoder = Encoder(bundle.name)
os.chdir("/")
def in_child():
    if os.fork() == 0:
        try:
            encoder.encode("text")
        except IntegrityError as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.wait()[1])
print(in_child(), flush=True)
model = bundle / "onnx" / "model.onnx"
shutil.copy(model, model.with_suffix(".new"))
model.with_suffix(".new").replace(model)
print(in_child(), flush=True)
encoder.encode("text")
"""


def test_a_forked_child_uses_its_parents_model_or_none(tiny_bundle: Path, tmp_path: Path) -> None:
    result = _python(REPLACED, copy_bundle(tiny_bundle, tmp_path))
    first, error, last = result.stdout.splitlines()
    assert (first, last, result.returncode) == ("0", "1", 0), result.stderr
    assert "replaced since this process's parent opened it" in error


LOCKED = """
import os, signal, sys
from whiten_runtime import Encoder
encoder = Encoder(sys.argv[1])
with encoder._embedder._count_lock:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        encoder.encode("long " * 99)
        os._exit(encoder.truncated)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_locks_are_free_in_a_forked_child(tiny_bundle: Path) -> None:
    result = _python(LOCKED, tiny_bundle)
    assert result.stdout == "1\n", result.stderr


LEAN = """
import sys, socket
def refuse(*args, **kwargs): raise AssertionError("the runtime used the network")
socket.socket.connect = socket.getaddrinfo = refuse
from whiten_runtime import Encoder
encoder = Encoder(sys.argv[1])
encoder.encode(["a", "b"]), encoder.verify()
heavy = {"torch", "transformers", "huggingface_hub", "onnx", "scipy", "sklearn", "pandas", "pyarrow",
         "whiten_export", "whiten_models", "whiten_evaluation"}
print(sorted(heavy & set(sys.modules)))
"""


def test_the_runtime_needs_neither_torch_nor_the_network(tiny_bundle: Path) -> None:
    result = _python(LEAN, tiny_bundle)
    assert result.stdout == "[]\n", result.stderr


TELEMETRY = """
import os, sys, threading, time
from whiten_runtime import Encoder
before = len(os.listdir("/proc/self/task"))
encoder = Encoder(sys.argv[1], threads=1)
print(len(os.listdir("/proc/self/task")) - before, "ORT_DISABLE_TELEMETRY" in os.environ)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_onnxruntime_starts_no_telemetry_thread(tiny_bundle: Path) -> None:
    result = _python(TELEMETRY, tiny_bundle)
    assert result.stdout == "0 False\n", result.stderr


MISSING = """
import sys
sys.modules["onnxruntime"] = None
from whiten_runtime import Encoder, WhitenError
try: Encoder(sys.argv[1])
except WhitenError as error: print(error)
"""


def test_without_onnxruntime_it_says_what_to_install(tiny_bundle: Path) -> None:
    result = _python(MISSING, tiny_bundle)
    assert "pip install 'whiten[cpu]'" in result.stdout, result.stderr
    assert result.stdout.count("\n") == 1
