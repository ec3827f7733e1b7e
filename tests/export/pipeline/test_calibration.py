"""int8 is calibrated on the sentences of --corpus, with and without a whitening."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import ok, refused

INT8 = ("--layers", "-1", "--whitening", "none", "--precision", "int8")


@pytest.mark.slow
def test_int8_without_a_whitening_is_calibrated_on_the_corpus(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model, corpus = checkpoint("bert"), tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{word} the {word} {number}\n" for number in range(400) for word in ("cat", "dog")))
    graphs = []
    for name, options in (("plain", ()), ("corpus", ("--corpus", corpus)), ("again", ("--corpus", corpus))):
        ok("export", str(model), *INT8, *options, "--out", tmp_path / name)
        graphs.append((tmp_path / name / "onnx" / "model.onnx").read_bytes())
    assert graphs[0] != graphs[1]
    assert graphs[1] == graphs[2]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ((*INT8[:4], "--corpus", "a.txt"), "corpus"),
        ((*INT8[:4], "--max-sentences", "10"), "max-sentences"),
        ((*INT8, "--prompt-name", "query"), "prompt-name"),
        ((*INT8, "--corpus", "absent.txt"), "absent.txt"),
    ],
)
def test_sentences_that_nothing_needs_or_that_are_not_there_are_refused(
    options: tuple[str, ...], name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    assert name in refused("export", str(checkpoint("bert")), *options, "--out", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
