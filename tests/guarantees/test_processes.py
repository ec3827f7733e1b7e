"""P. Processes: forks, threads, memory and the end of the interpreter; bad input is one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.bundles import contents, copy_bundle
from support.cli import invoke
from support.corpus import sentences
from support.vectors import ROUNDING, worst
from whiten import Coder, Encoder, UsageError, VectorWhitener, WhitenError, Whitening
from whiten_runtime.commands.console import whiten

PATIENCE = 240


def program(code: str, *arguments: object, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run a program as users do: without the variable CI, with which onnxruntime behaves better."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True) as run:
        try:
            output, errors = run.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, run.returncode, output, errors)


# P1: a child that is forked at any moment, while any lock of ours is held, answers within seconds.

FORK = """
import os, signal, sys, threading, traceback
from pathlib import Path

real, packages, tried = threading.Lock, ("/whiten/", "/whiten_runtime/", "/whiten_whitening/", "/whiten_serving/"), {}
real_again, get_ident, own_threads = threading.RLock, threading.get_ident, {threading.get_ident()}
wanted, forked, parent = threading.Event(), threading.Event(), os.getpid()
turn = real()

class Watched:
    # Asks the main thread for a fork when it is taken by another one, once for each line that makes such a lock.

    def __init__(self, place, kind):
        self._lock, self._place = kind(), place
        for name in ("_release_save", "_acquire_restore", "_is_owned", "_at_fork_reinit"):  # what threading calls
            if hasattr(self._lock, name):
                setattr(self, name, getattr(self._lock, name))

    def acquire(self, *arguments, **options):
        taken = self._lock.acquire(*arguments, **options)
        if taken and get_ident() not in own_threads and os.getpid() == parent and turn.acquire(blocking=False):
            if self._place not in tried:
                tried[self._place] = None
                forked.clear()
                wanted.set()
                forked.wait(2)  # not for ever: a fork may wait for the lock
            turn.release()
        return taken

    def release(self):
        self._lock.release()

    def locked(self):
        return self._lock.locked()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *raised):
        self.release()

def make_lock(kind):
    # The place is the first function of ours, but for those that make locks for others.
    frame, place = sys._getframe(2), None
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        own = any(package in file for package in packages)
        if own:
            place = f"{Path(file).name}:{name}"
        if not file.endswith(("threading.py", "_base.py")) and not (own and name in ("__init__", "renew", "in_thread")):
            break
        frame = frame.f_back
    return kind() if place is None else Watched(place, kind)

import numpy, onnxruntime, safetensors, tokenizers, sklearn.base, concurrent.futures, asyncio
threading.Lock = lambda: make_lock(real)
threading.RLock = lambda: make_lock(real_again)

from whiten import Encoder, Batcher, VectorWhitener
from whiten.integrations.sklearn import BundleVectorizer

bundle, long_bundle, vectors = sys.argv[1:]
texts = [f"text {number} " * (1 + number % 40) for number in range(60)]
long_text = "a long text of words " * 250
turn.acquire()  # nothing is tried before the main thread waits below
encoder, long_encoder = Encoder(bundle), Encoder(long_bundle)
want = encoder.encode(texts)
turn.release()

def work(encoder, long_encoder):
    assert numpy.allclose(encoder.encode(texts), want, atol=1e-4)
    list(encoder.encode_iter(texts))
    encoder.encode_passages(texts[0], [(0, 4)])
    long_encoder.encode([long_text, texts[0]])
    long_encoder.encode(long_text)
    Encoder(bundle).encode(texts[:2])
    VectorWhitener(vectors).transform(numpy.ones((2, 12), numpy.float32))
    BundleVectorizer(bundle).fit_transform(texts[:2])
    with Batcher(encoder) as batcher:
        batcher.submit(texts[:3]).result()

def busy():
    while not ended.is_set():
        work(encoder, long_encoder)

ended, failed, count = threading.Event(), 0, 0
for _ in range(2):
    threading.Thread(target=busy, daemon=True).start()
while wanted.wait(15):
    wanted.clear()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work(encoder, long_encoder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    forked.set()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count += 1
    print("forked while a lock was held of", list(tried)[-1], file=sys.stderr)
    if code:
        failed += 1
        print("a child ended with", code, "forked while a lock was held of", list(tried)[-1], file=sys.stderr)
ended.set()
print(count, failed)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_p1_a_child_answers_whichever_lock_was_held_when_it_was_forked(
    tiny_bundle: Path, long_bundle: Path, golden: Path
) -> None:
    done = program(FORK, tiny_bundle, long_bundle, golden / "bundle-v1-vectors")
    assert done.returncode == 0, done.stderr
    count, failed = map(int, done.stdout.split())
    assert failed == 0, done.stderr
    assert count >= 8, done.stderr  # as many places that make locks were tried


WHILE_OPENING = """
import os, signal, sys, threading
from whiten import Encoder
from whiten.integrations.sklearn import BundleVectorizer
first, ended = Encoder(sys.argv[1]), threading.Event()

def open_and_encode():
    while not ended.is_set():
        Encoder(sys.argv[1]).encode(["a text"] * 20)
        BundleVectorizer(sys.argv[1]).fit_transform(["a text"])

threads = [threading.Thread(target=open_and_encode, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        BundleVectorizer(sys.argv[1]).fit_transform(["a text"])
        Encoder(sys.argv[1]).encode(["a text"] * 20)
        first.encode(["a text"] * 20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
print("answered")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_p1_a_child_answers_that_is_forked_while_a_bundle_is_opened(tiny_bundle: Path) -> None:
    done = program(WHILE_OPENING, tiny_bundle)
    assert done.stdout == "answered\n", done.stderr


# P2: a process that ends while threads encode ends with its own exit status.

ENDING = """
import sys, threading
from whiten import ClosedError, Encoder
encoder, threads, code = Encoder(sys.argv[1], threads=int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
texts = [f"text {number}" for number in range(300)]
working = threading.Semaphore(0)

def work(action):
    try:
        while True:
            action()
            working.release()
    except ClosedError:
        pass

actions = (lambda: encoder.encode(texts), lambda: encoder.encode("a text"), lambda: Encoder(sys.argv[1]).close())
for number in range(threads):
    threading.Thread(target=work, args=(actions[number % 3],), daemon=True).start()
for _ in range(2 * threads):
    working.acquire()
sys.exit(code)
"""


@pytest.mark.parametrize(("threads", "workers", "code"), [(1, 1, 0), (2, 3, 5)])
def test_p2_the_exit_status_is_the_programs_own(tiny_bundle: Path, threads: int, workers: int, code: int) -> None:
    done = program(ENDING, tiny_bundle, threads, workers, code)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.slow
def test_p2_the_exit_status_is_the_programs_own_each_time(tiny_bundle: Path) -> None:
    for number in range(12):
        done = program(ENDING, tiny_bundle, 1 + number % 2, 6, number, patience=60)
        assert (done.returncode, done.stderr) == (number, "")


AT_EXIT = """
import atexit, sys
atexit.register(lambda: print(encoder.encode(["last"] * 200).shape))
from whiten import Encoder
encoder = Encoder(sys.argv[1])
encoder.encode("first")
"""


def test_p2_what_runs_at_exit_can_encode(tiny_bundle: Path) -> None:
    done = program(AT_EXIT, tiny_bundle)
    assert (done.stdout, done.stderr, done.returncode) == ("(200, 32)\n", "", 0)


# P3: where no thread can be started, everything still works, slower.

WITHOUT_THREADS = """
import sys, threading

def refuse(*arguments, **options):
    raise RuntimeError("can't start new thread")

import numpy
threading._start_new_thread = refuse
threading._start_joinable_thread = refuse  # since Python 3.13
"""

USES = {
    "encode": "print(Encoder(sys.argv[1]).encode(texts).tobytes().hex())",
    "encode_iter": "print(numpy.stack(list(Encoder(sys.argv[1]).encode_iter(iter(texts)))).tobytes().hex())",
    "verify": "print(Encoder(sys.argv[1], verify=True).dimension)",
    "passages": "print(Encoder(sys.argv[1]).encode_passages(texts[9], [(0, 4), (2, 9)]).shape)",
}


@pytest.mark.parametrize("use", USES)
def test_p3_everything_works_without_threads(tiny_bundle: Path, use: str) -> None:
    body = (
        'from whiten import Encoder\ntexts = [f"text {number % 700} of some" for number in range(5000)]\n' + USES[use]
    )
    with_threads = program(f"import sys, numpy\n{body}", tiny_bundle)
    without = program(f"{WITHOUT_THREADS}\n{body}", tiny_bundle)
    assert without.returncode == 0, without.stderr
    assert without.stdout == with_threads.stdout


COMMANDS: tuple[Any, ...] = (
    ("embed", "BUNDLE", "--input", "texts.txt", "--out", "vectors.npy"),
    ("verify", "BUNDLE"),
    ("fit", "BUNDLE", "--corpus", "texts.txt", "--out", "statistics"),
    pytest.param(
        ("embed-many", "BUNDLE", "--input", "texts.txt", "--out", "many", "--workers", "1"),
        marks=pytest.mark.xfail(strict=True, reason="a pool of processes starts threads of its own"),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_p3_commands_work_without_threads(tiny_bundle: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences(300)) + "\n", "utf-8")
    run = "import os\nos.chdir(sys.argv.pop(1))\nfrom whiten_runtime.commands.console import main\nmain()"
    chosen = [str(tiny_bundle) if argument == "BUNDLE" else argument for argument in arguments]
    done = program(f"{WITHOUT_THREADS}\n{run}", tmp_path, *chosen)
    assert done.returncode == 0, done.stderr


AFTER_MAIN = """
import sys, threading
from whiten import Encoder
first, main = Encoder(sys.argv[1]), threading.main_thread()

def work():
    main.join()
    print(len(first.encode([f"text {number}" for number in range(5000)])), Encoder(sys.argv[1]).dimension)

threading.Thread(target=work).start()
"""


def test_p3_a_thread_that_outlives_the_main_one_opens_and_encodes(tiny_bundle: Path) -> None:
    done = program(AFTER_MAIN, tiny_bundle)
    assert (done.stdout, done.stderr, done.returncode) == ("5000 32\n", "", 0)


# P4: memory is bounded by a limit that is named, and flat.


@pytest.mark.parametrize("characters", [20_000, 400_000])
def test_p4_a_stream_of_large_texts_is_read_a_part_at_a_time(tiny: Encoder, characters: int) -> None:
    read = 0

    def stream() -> Iterator[str]:
        nonlocal read
        for number in range(32_000_000 // characters * 3):
            read += 1
            yield f"{number} " + "word " * (characters // 5)

    vectors = tiny.encode_iter(stream())
    next(vectors)
    assert read * characters <= 33_000_000 + 2 * characters
    vectors.close()


def test_p4_a_list_of_large_texts_has_the_vectors_of_its_texts(tiny: Encoder) -> None:
    texts = [f"{number} " + "word " * 300_000 for number in range(24)]
    np.testing.assert_allclose(tiny.encode(texts), [tiny.encode(text) for text in texts], atol=1e-4)


OPENED = """
import gc, os, resource, sys
from whiten import Encoder

def kilobytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024

def use():
    with Encoder(sys.argv[1]) as encoder:
        encoder.encode([f"text {number}" for number in range(200)])
        list(encoder.encode_iter(f"word {number} " * (number % 30) for number in range(300)))
        encoder.encode_passages("some text", [(0, 4)])

for _ in range(5):
    use()
before = kilobytes()
for _ in range(40):
    use()
print(kilobytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory in /proc")
def test_p4_memory_is_flat_over_encoders_that_are_opened_and_closed(tiny_bundle: Path) -> None:
    done = program(OPENED, tiny_bundle)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000


# P5: no text waits for ever.


@pytest.mark.slow
def test_p5_a_large_text_is_computed_while_smaller_ones_keep_coming(long_bundle: Path) -> None:
    with Encoder(long_bundle) as measured:
        memory, per_word = measured.manifest.memory, measured.token_count("word " * 100) / 100
        small, large = ("word " * int(tokens / per_word) for tokens in (700, 1900))
        limit = int(1.05 * memory.of(measured.token_count(large), 1))
    done, begun, computed = threading.Event(), threading.Semaphore(0), []
    with Encoder(long_bundle, threads=2, memory_limit=limit) as encoder:

        def keep_busy() -> None:
            while not done.is_set() and len(computed) < 2000:
                encoder.encode(small)
                computed.append(1)
                begun.release()

        threads = [threading.Thread(target=keep_busy) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=PATIENCE)
        before = len(computed)
        encoder.encode(large)
        waited = len(computed) - before
        done.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert waited <= 8  # the texts that came before it, and some that end meanwhile


# P6: bad input is one line that names the argument, before any download or long work.

ODD: dict[str, Any] = {
    "none": None,
    "five": 5,
    "minus": -1,
    "half": 1.5,
    "nan": float("nan"),
    "word": "no",
    "empty": "",
    "bytes": b"a",
    "list": [],
    "texts": ["a", "b"],
    "mapping": {"a": 1},
    "object": object(),
    "array": np.arange(6).reshape(2, 3),
    "long": "a" * 300,
    "nul": "a\0b",
    "type": str,
    "complex": 1j,
}

OPENING = ("providers", "threads", "device", "verify_hashes", "verify", "spinning", "cuda_graphs", "max_characters")
ENCODING = ("prompt_name", "prompt", "batch_size", "truncate", "max_characters", "normalize_embeddings", "truncate_dim")
CALLS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "encode": (Encoder.encode, ("texts", *ENCODING, "precision", "ranges", "device", "convert_to_numpy", "wrong")),
    "encode_query": (Encoder.encode_query, ("texts", *ENCODING)),
    "encode_both": (Encoder.encode_both, ("texts", *ENCODING[:5])),
    "encode_iter": (lambda *values, **options: list(Encoder.encode_iter(*values, **options)), ("texts", *ENCODING)),
    "encode_passages": (Encoder.encode_passages, ("text", "spans", "prompt", "truncate_dim", "precision", "ranges")),
    "token_count": (Encoder.token_count, ("texts",)),
    "tokens": (Encoder.tokens, ("text", "special")),
    "decode": (Encoder.decode, ("ids", "skip_special")),
    "similarity": (Encoder.similarity, ("a", "b")),
    "similarity_pairwise": (Encoder.similarity_pairwise, ("a", "b")),
    "ranges": (Encoder.ranges, ("normalize_embeddings", "truncate_dim")),
}
USUAL: dict[str, Any] = {
    **{"texts": ["a text"], "text": "a text", "spans": [(0, 1)], "ids": [5]},
    **{"a": np.ones((1, 32), np.float32), "b": np.ones((1, 32), np.float32)},
}


@contextmanager
def one_line() -> Iterator[None]:
    """Accept success, or an error of whiten in one line."""
    try:
        yield
    except WhitenError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 2000


@pytest.mark.parametrize("name", CALLS)
def test_p6_an_odd_argument_of_a_call_is_taken_or_refused_in_a_line(tiny: Encoder, name: str) -> None:
    call, names = CALLS[name]
    usual = {name: USUAL[name] for name in names if name in USUAL}
    for changed in names:
        for value in ODD.values():
            with one_line():
                call(tiny, **usual | {changed: value})


@given(data=st.data())
def test_p6_two_odd_arguments_of_a_call_are_taken_or_refused_in_a_line(tiny: Encoder, data: st.DataObject) -> None:
    call, names = CALLS[data.draw(st.sampled_from([name for name in CALLS if len(CALLS[name][1]) > 1]))]
    changed = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
    arguments = {name: USUAL[name] for name in names if name in USUAL}
    arguments |= {name: ODD[data.draw(st.sampled_from(sorted(ODD)))] for name in changed}
    with one_line():
        call(tiny, **arguments)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", OPENING)
def test_p6_an_odd_argument_of_an_encoder_is_refused_before_the_hub_is_asked(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "providers" and value == "texts":
        pytest.skip("these may be names of providers, which only onnxruntime knows")
    monkeypatch.chdir(tmp_path)
    for kind in (Encoder, VectorWhitener):
        if kind is VectorWhitener and name in ("cuda_graphs", "max_characters"):
            continue
        try:
            kind("org/name", **{name: ODD[value]})
        except UsageError as error:
            assert name in str(error)
        except WhitenError as error:  # the hub's cache has no such repository
            usual = {"none", *({"five"} if name in ("threads", "max_characters") else ())}
            assert value in usual, error


@pytest.mark.parametrize("value", ODD)
def test_p6_an_odd_place_is_refused_in_a_line(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for action in (Encoder, VectorWhitener, Coder.of, Coder.load, Whitening.load):
        with pytest.raises(WhitenError) as caught:
            action(ODD[value])
        assert "\n" not in str(caught.value)


@contextmanager
def another_user() -> Iterator[None]:
    """Be a user who may not read what root alone may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Places that the system does not look up, or where there is something else than is wanted."""
    folder = tmp_path_factory.mktemp("places")
    closed, loop, pipe, file = (folder / name for name in ("closed", "loop.jsonl", "pipe.jsonl", "file"))
    closed.mkdir(mode=0)
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    file.write_text("text\n", "utf-8")
    yield {
        "a loop of links": loop,
        "a pipe": pipe,
        "below a file": file / "inside.jsonl",
        "a name too long": folder / ("n" * 300 + ".jsonl"),
        "a folder": folder,
        "of another user": closed / "inside.jsonl",  # last: what is imported by then can be read
    }
    closed.chmod(0o700)


DOORS = {
    "embed": ("embed", "BUNDLE", "--input", "PLACE", "--kind", "jsonl", "--column", "text"),
    "embed --out": ("embed", "BUNDLE", "a text", "--out", "PLACE"),
    "transform": ("transform", "VECTORS", "--input", "PLACE", "--out", "vectors.npy"),
    "drift": ("drift", "BUNDLE", "--input", "PLACE"),
    "fit": ("fit", "BUNDLE", "--corpus", "PLACE", "--out", "statistics"),
    "fit --out": ("fit", "BUNDLE", "--corpus", "TEXTS", "--out", "PLACE"),
    "refit --stats": ("refit", "BUNDLE", "--stats", "PLACE", "--out", "other"),
    "refit --dev": ("refit", "BUNDLE", "--corpus", "TEXTS", "--dev", "PLACE", "--out", "other"),
    "info": ("info", "PLACE"),
    "verify": ("verify", "PLACE"),
    "eval sts": ("eval", "sts", "BUNDLE", "--data", "PLACE"),
    "eval retrieval": ("eval", "retrieval", "BUNDLE", "--data", "PLACE"),
    "embed-many": ("embed-many", "BUNDLE", "--input", "PLACE", "--out", "many"),
    "embed-many --out": ("embed-many", "BUNDLE", "--input", "TEXTS", "--out", "PLACE"),
    "export": ("export", "PLACE"),
    "export --corpus": ("export", "NETWORK", "--corpus", "PLACE", "--out", "other"),
}


@pytest.mark.parametrize("door", DOORS)
def test_p6_a_place_that_cannot_be_looked_up_is_refused_in_a_line(
    door: str,
    places: dict[str, Path],
    tiny_bundle: Path,
    golden: Path,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(sentences(3)) + "\n", "utf-8")
    named = {"BUNDLE": tiny_bundle, "VECTORS": golden / "bundle-v1-vectors", "TEXTS": tmp_path / "texts.txt"}
    if "NETWORK" in DOORS[door]:
        named["NETWORK"] = checkpoint("bert")
    for kind, place in places.items():
        if kind == "a pipe" and "--out" not in door:
            continue  # a pipe may be read
        arguments = [str(place if part == "PLACE" else named.get(part, part)) for part in DOORS[door]]
        if kind == "of another user":
            if os.geteuid() == 0 and door.startswith("export"):
                continue  # packages below root's home are read as well
            with another_user():
                result = invoke(whiten, *arguments)
        else:
            result = invoke(whiten, *arguments)
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert result.exit_code in (1, 2), (kind, result.output)
        assert len(lines) == 1, (kind, result.output)
        assert "unexpected" not in lines[0], (kind, result.output)


def test_p6_a_cache_of_another_user_is_named(
    tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    cache = tmp_path_factory.mktemp("cache")
    commit = "0" * 40
    snapshot = cache / "models--org--name" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    copy_bundle(tiny_bundle, snapshot.parent).rename(snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    Encoder("org/name", revision=commit).close()
    (cache / "models--org--name").chmod(0)
    try:
        for revision in (commit, None, "v1"):
            with another_user(), pytest.raises(WhitenError) as caught:
                Encoder("org/name", revision=revision)
            assert "HF_HOME" in str(caught.value)
            assert "\n" not in str(caught.value)
    finally:
        (cache / "models--org--name").chmod(0o700)


class Named(Encoder):
    """An encoder with attributes of its own."""

    def __init__(self, path: Path, label: str) -> None:
        super().__init__(path)
        self.label, self.notes = label, [label]


def test_p6_a_subclass_keeps_its_attributes_through_pickle_and_copy(tiny_bundle: Path) -> None:
    import copy
    import pickle

    named = Named(tiny_bundle, "mine")
    for other in (pickle.loads(pickle.dumps(named)), copy.copy(named), copy.deepcopy(named)):
        assert (type(other), other.label, other.notes) == (Named, "mine", ["mine"])
        assert worst(other.encode(["a text"]), named.encode(["a text"])) < ROUNDING


def test_p6_a_hub_that_names_no_commit_is_said_to_be_so(hub: Any, tiny_bundle: Path) -> None:
    hub.repositories["org/name"] = contents(tiny_bundle)
    hub.names_commits = False
    with pytest.raises(WhitenError) as caught:
        Encoder("org/name")
    assert "X-Repo-Commit" in str(caught.value)
    assert "None" not in str(caught.value)


def test_p6_a_branch_in_the_hubs_cache_is_replaced_and_never_half_written(
    hub: Any, tiny_bundle: Path, golden: Path, tmp_path: Path
) -> None:
    hub.repositories["org/name"] = contents(tiny_bundle)
    Encoder("org/name").close()
    (branch,) = (tmp_path / "cache").rglob("refs/main")
    (snapshots,) = (tmp_path / "cache").rglob("snapshots")
    before, reader = branch.read_text("utf-8"), tmp_path / "reader"
    os.link(branch, reader)  # another process that has opened it
    hub.repositories["org/name"] = contents(golden / "bundle-v1-int8")
    shutil.rmtree(snapshots)
    with Encoder("org/name") as encoder:
        assert encoder.manifest.precision == "int8"
    assert reader.read_text("utf-8") == before != branch.read_text("utf-8")
    assert {path.name for path in branch.parent.iterdir()} == {"main"}


def test_p6_json_of_a_manifest_says_what_is_wrong(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    for content in (b"null", b"[]", b"5", b'"a"', b"{", json.dumps({"format_version": 1}).encode()):
        (bundle / "whiten.json").write_bytes(content)
        with one_line(), pytest.raises(WhitenError):
            Encoder(bundle)
