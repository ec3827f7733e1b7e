"""Test exports of names from the cache of the hub: repository, casing, pooling and archive of each."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cli import ok, refused
from support.families import WIDENED
from support.hub import COMMIT
from support.vectors import write_word_vectors
from whiten import Encoder
from whiten_models.catalogue import find

pytestmark = pytest.mark.slow


def manifest(bundle: str) -> dict[str, object]:
    content: dict[str, object] = json.loads(Path(bundle, "whiten.json").read_text())
    return content


def test_name_is_resolved_to_its_repository(
    snapshot: Callable[[str], Path], checkpoint: Callable[[str], Path], corpus_file: Path
) -> None:
    shutil.copytree(checkpoint("bert"), snapshot("bert-base"))
    ok("export", "bert-base", "--layers", "1,4", "--corpus", corpus_file)
    source = manifest("bundles/bert-base-l1-l4")["source"]
    assert isinstance(source, dict)
    assert (source["checkpoint"], source["revision"]) == ("google-bert/bert-base-uncased", COMMIT)
    assert "layer 12" in refused("export", "bert-base")  # the recommended layers are those of the real checkpoint


def test_casing_is_set_by_the_catalogue(
    snapshot: Callable[[str], Path], checkpoint: Callable[..., Path], corpus_file: Path
) -> None:
    shutil.copytree(checkpoint("spanbert", WIDENED), snapshot("spanbert-base"))
    options = ("--layers", "0", "--corpus", corpus_file)
    ok("export", "spanbert-base", *options, "--out", "named")
    ok("export", checkpoint("spanbert", WIDENED), *options, "--out", "unnamed")
    for bundle, same in (("named", False), ("unnamed", True)):
        with Encoder(bundle) as encoder:
            a, b = encoder.encode(["The Committee", "the committee"])
            assert np.array_equal(a, b) == same, bundle


def test_recommended_pooling_is_the_default(snapshot: Callable[[str], Path], checkpoint: Callable[[str], Path]) -> None:
    shutil.copytree(checkpoint("bert"), snapshot("simcse"))
    command = ("simcse", "--layers", "3", "--whitening", "none")
    ok("export", *command)
    assert manifest("bundles/simcse-l3-pooler-raw")["pooling"] == "pooler"
    ok("export", *command, "--pooling", "mean")
    assert manifest("bundles/simcse-l3-raw")["pooling"] == "mean"


def test_word_vectors_are_read_from_their_archive(snapshot: Callable[[str], Path], corpus_file: Path) -> None:
    folder = snapshot("sif")
    folder.mkdir(parents=True)
    entry = find("sif")
    assert entry is not None
    write_word_vectors(Path("glove.txt"), corpus_file.read_text().splitlines(), 12)
    with zipfile.ZipFile(folder / str(entry.file), "w") as archive:
        archive.write("glove.txt")
    ok("export", "sif", "--corpus", corpus_file)
    described = manifest("bundles/sif-l0-sif")
    assert (described["pooling"], described["dimension"]) == ("sif", 12)
    ok("export", "glove", "--corpus", corpus_file)
    assert manifest("bundles/glove-l0")["pooling"] == "mean"
