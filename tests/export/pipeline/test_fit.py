"""Test `whiten fit` and `merge`: statistics of a corpus, merged, resumed after an interruption."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cli import invoke as run
from support.cli import ok
from support.corpus import sentences
from whiten_export.commands.export import export
from whiten_export.corpus.statistics import load_statistics
from whiten_export.pipeline import fit
from whiten_export.pipeline.fit import fit_bundle
from whiten_runtime import Encoder, UsageError
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.ort.session import SessionOptions

pytestmark = pytest.mark.slow


def test_merged_statistics_equal_those_of_the_whole_corpus(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = sentences(900)
    for name, part in {"a": texts[:500], "b": texts[500:], "all": texts}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(part) + "\n", "utf-8")
        ok("fit", tiny_bundle, "--corpus", tmp_path / f"{name}.txt", "-o", tmp_path / f"{name}.safetensors")
    parts = [tmp_path / f"{name}.safetensors" for name in "ab"]
    report = json.loads(ok("merge", *parts, "-o", tmp_path / "ab.safetensors", "--json").stdout)
    assert [record["sentences"] for record in report["corpus"]] == [500, 400]
    merged, whole = (load_statistics(tmp_path / f"{name}.safetensors")[0] for name in ("ab", "all"))
    scale = np.abs(whole.moments.scatter).max()  # batches differ, and so does rounding in float32
    np.testing.assert_allclose(merged.moments.scatter, whole.moments.scatter, atol=1e-6 * scale)
    assert len(merged.sample.keys) == len(whole.sample.keys) == 900
    for name in ("ab", "all"):
        ok("refit", tiny_bundle, "--stats", tmp_path / f"{name}.safetensors", "--out", tmp_path / name)
    with Encoder(tmp_path / "ab") as first, Encoder(tmp_path / "all") as second:
        np.testing.assert_allclose(first.encode(texts[:20]), second.encode(texts[:20]), atol=1e-3)
        assert [record.name for record in first.manifest.whitening.corpus] == ["a.txt", "b.txt"]  # type: ignore[union-attr]


_KILLED_AFTER_A_STATE = """
import os, signal, sys
from pathlib import Path
from whiten_export.pipeline import fit
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
save = fit.save_statistics
def save_and_die(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
fit.save_statistics = save_and_die
bundle, corpus, out = sys.argv[1:]
fit.fit_bundle(Path(bundle), Corpus((corpus,), None, None), Path(out), seconds_between=0)
"""


def test_interrupted_fit_resumes_with_the_same_bits(tiny_bundle: Path, tmp_path: Path) -> None:
    """Check the state after an interruption, and that the resumed fit has the bits of an uninterrupted one."""
    texts = [f"{text} {number}" for number in range(30) for text in sentences(600)]
    assert len(texts) > 4 * WINDOW
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    command = [sys.executable, "-c", _KILLED_AFTER_A_STATE, str(tiny_bundle), "c.txt", "s.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "s.safetensors").exists()
    _, _, progress = load_statistics(tmp_path / "s.safetensors.partial")
    assert progress is not None
    assert 0 < progress.sentences < len(texts)
    refused = run(whiten, "refit", tiny_bundle, "--stats", tmp_path / "s.safetensors.partial", "--out", tmp_path / "b")
    assert (refused.exit_code, "was interrupted" in refused.stderr) == (2, True)
    result = ok("fit", tiny_bundle, "--corpus", tmp_path / "c.txt", "-o", tmp_path / "s.safetensors")
    assert f"going on after {progress.sentences:,} sentences" in result.stderr
    assert not (tmp_path / "s.safetensors.partial").exists()
    ok("fit", tiny_bundle, "--corpus", tmp_path / "c.txt", "-o", tmp_path / "t.safetensors")
    assert (tmp_path / "s.safetensors").read_bytes() == (tmp_path / "t.safetensors").read_bytes()


_KILLED_IN_THE_FIFTH_WINDOW = """
import os, signal, sys, time
from pathlib import Path
from whiten_export.pipeline import fit
from whiten_runtime.files.corpus import Corpus
calls, keep = 0, fit._Keeper.keep
def kept(self, *state):
    global calls
    calls += 1
    if calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.1)  # as windows of real models take
    keep(self, *state)
fit._Keeper.keep = kept
bundle, corpus, out = sys.argv[1:]
fit.fit_bundle(Path(bundle), Corpus((corpus,), None, None), Path(out))
"""


def test_a_killed_fit_loses_no_more_than_a_window_and_what_a_save_costs(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = [f"{text} {number}" for number in range(36) for text in sentences(600)]
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    command = [sys.executable, "-c", _KILLED_IN_THE_FIFTH_WINDOW, str(tiny_bundle), "c.txt", "s.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    _, _, progress = load_statistics(tmp_path / "s.safetensors.partial")
    assert progress is not None
    assert progress.sentences >= 3 * WINDOW  # of four that were done; a save that takes 0.1 s lets one window pass


def test_fit_does_not_resume_with_another_corpus_or_bundle(
    tiny_bundle: Path, make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tmp_path / "c.txt", tmp_path / "s.safetensors"
    corpus.write_text("\n".join(sentences(600)) + "\n", "utf-8")
    ok("fit", tiny_bundle, "--corpus", corpus, "-o", out)
    monkeypatch.setattr(fit, "save_statistics", _keep_only_partial(fit.save_statistics))
    with pytest.raises(KeyboardInterrupt):
        fit_bundle(tiny_bundle, Corpus((str(corpus),), None, None), out, seconds_between=-1)
    monkeypatch.undo()
    assert (tmp_path / "s.safetensors.partial").exists()
    corpus.write_text("\n".join(sentences(601)[1:]) + "\n", "utf-8")
    refused = run(whiten, "fit", tiny_bundle, "--corpus", corpus, "-o", out)
    assert (refused.exit_code, "the corpus is not the one" in refused.stderr) == (2, True)
    other = run(whiten, "fit", make("--pooling", "cls"), "--corpus", corpus, "-o", out)
    assert (other.exit_code, "is of another fit" in other.stderr) == (2, True)
    ok("fit", tiny_bundle, "--corpus", corpus, "-o", out, "--restart")


def _keep_only_partial(save: Callable[..., None]) -> Callable[..., None]:
    def stop(path: Path, *arguments: object) -> None:
        if path.suffix != ".partial":
            raise KeyboardInterrupt
        save(path, *arguments)

    return stop


def test_interrupted_fit_saves_its_progress(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{text} {number}" for number in range(12) for text in sentences(600)]
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    real = fit.fit_corpus

    def interrupted(*arguments: object) -> object:
        *others, keep = arguments

        def stop(*state: object) -> None:
            keep(*state)  # type: ignore[operator]
            raise KeyboardInterrupt

        return real(*others, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(fit, "fit_corpus", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_bundle(tiny_bundle, Corpus((str(tmp_path / "c.txt"),), None, None), tmp_path / "s.safetensors")
    _, _, progress = load_statistics(tmp_path / "s.safetensors.partial")
    assert progress is not None
    assert progress.sentences == WINDOW
    monkeypatch.undo()
    assert (
        "going on after 4,096"
        in ok("fit", tiny_bundle, "--corpus", tmp_path / "c.txt", "-o", tmp_path / "s.safetensors").stderr
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_error_for_a_nonfinite_vector_names_its_sentence(
    checkpoint: Callable[[str], Path], tmp_path: Path, value: float
) -> None:
    from transformers import AutoModel, AutoTokenizer

    source = checkpoint("bert")
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source)
    texts = sentences(60)
    texts.insert(41, "please return 7 rows")
    rare = next(
        token
        for token in tokenizer(texts[41])["input_ids"]
        if not any(token in tokenizer(text)["input_ids"] for text in (texts[:41] + texts[42:]))
    )
    model.embeddings.word_embeddings.weight.data[rare] = value
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    result = run(export, tmp_path / "model", "--layers", "0", "--corpus", tmp_path / "c.txt", "--out", tmp_path / "b")
    assert result.exit_code == 1
    assert "sentence 42 of the corpus has a vector that is not finite: 'please return 7 rows'" in result.stderr
    assert not (tmp_path / "b").exists()


def test_bfloat16_is_refused(tiny_bundle: Path) -> None:
    """Its vectors would be recorded as float32's."""
    options = SessionOptions((("OpenVINOExecutionProvider", {"INFERENCE_PRECISION_HINT": "bf16"}),))
    with pytest.raises(UsageError, match="bfloat16"):
        fit_bundle(tiny_bundle, Corpus((BUILTIN_CORPUS,), None, None), options=options)
