"""What tests of fits and refits share: another corpus, pairs, and bundles exported with given options."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import ok
from support.corpus import sentences
from support.families import WIDTH
from whiten_export.recipe import SENTENCES_PER_DIMENSION


@pytest.fixture(scope="session")
def other_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences that the bundles were not fitted on, as many as a fit of the small BERT uses."""
    path = tmp_path_factory.mktemp("corpus") / "other.txt"
    path.write_text("\n".join(sentences(1200)[600:][: SENTENCES_PER_DIMENSION * WIDTH]) + "\n", "utf-8")
    return path


@pytest.fixture(scope="session")
def dev_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 80 pairs of sentences with scores that have nothing to do with them."""
    texts = sentences(160)
    pairs = enumerate(zip(texts, texts[80:], strict=False))
    rows = (json.dumps({"sentence1": a, "sentence2": b, "score": n % 7}) for n, (a, b) in pairs)
    path = tmp_path_factory.mktemp("dev") / "dev.jsonl"
    path.write_text("\n".join(rows), "utf-8")
    return path


@pytest.fixture(scope="session")
def make(
    checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that exports the small BERT with given options."""
    made: dict[tuple[object, ...], Path] = {}

    def get(*options: object) -> Path:
        if options not in made:
            out = tmp_path_factory.mktemp("bundles") / "b"
            corpus = [] if "none" in options else ["--corpus", corpus_file]
            corpus += [] if "--whitening" in options else ["--whitening", "pca"]
            ok("export", checkpoint("bert"), "--layers", "1,4", *corpus, *options, "--out", out)
            made[options] = out
        return made[options]

    return get
