"""Test exports of names from the hub's cache, and that an export prints nothing on stderr but its own lines."""

import json
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Pooling

from support.checkpoints import save_checkpoint, write_json
from support.cli import invoke, ok, python
from support.families import FAMILIES, WIDENED, Family
from support.hub import COMMIT
from support.published import save, transformer
from support.vectors import write_word_vectors
from whiten import Encoder
from whiten_export.commands.export import export
from whiten_models.catalogue import find

pytestmark = pytest.mark.slow

run = partial(invoke, export)


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
    # The recommended layers are those of the real checkpoint.
    assert "layer 12 does not exist" in run("bert-base").stderr


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


BERT, LLAMA, ROBERTA = FAMILIES["bert"], FAMILIES["llama"], FAMILIES["roberta"]
BLOCKS = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 28}
WINDOWS = {"attention_window": [8], "sep_token_id": 2}
NTK = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}

RUN = """
import sys
from whiten_export.commands.export import export
from whiten_runtime.ort.session import silence_log
silence_log()
for folder in sys.argv[1:]:
    try:
        export.main([folder, "--whitening", "none", "--out", folder + "-bundle", "-q"])
    except SystemExit as end:
        print(end.code)
"""


def of_kind(family: Family, model_type: str, folder: Path, **changes: object) -> Path:
    """Write a checkpoint of one layer of another architecture with a family's tokenizer and sizes."""
    settings = dict(family.tokenizer_config or {})
    if family is BERT:  # transformers would look for the files of the other architecture's tokenizer
        settings["tokenizer_class"] = "BertTokenizer"
    made = Family(
        model_type, family.vocabulary, {**family.config, "num_hidden_layers": 1, **changes}, family.ids, settings
    )
    return save_checkpoint(made, folder)


def test_nothing_but_its_own_lines_reaches_stderr(tmp_path: Path) -> None:
    first = transformer("bert")
    unpadded = save([first, Pooling(first.get_embedding_dimension(), "mean")], tmp_path / "unpadded")
    path = unpadded / "sentence_bert_config.json"
    write_json(path, json.loads(path.read_text("utf-8")) | {"unpad_inputs": True})
    folders = [
        unpadded,  # sentence-transformers tells that it does not
        of_kind(BERT, "big_bird", tmp_path / "blocks", **BLOCKS),  # transformers tells that it pads
        of_kind(LLAMA, "llama", tmp_path / "ntk", **NTK),
        of_kind(ROBERTA, "longformer", tmp_path / "windows", **WINDOWS),  # torch tells what it cannot trace
        of_kind(BERT, "data2vec-text", tmp_path / "positions", pad_token_id=0),
    ]
    done = python(RUN, *folders, timeout=600, check=True)
    assert done.stdout.split() == ["0", "0", "0", "1", "0"]
    assert [line for line in done.stderr.splitlines() if not line.startswith(("warning: ", "error: "))] == []
