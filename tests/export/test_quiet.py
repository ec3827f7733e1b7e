"""Test that an export prints nothing on stderr but its own lines, whatever torch, transformers and onnxruntime say."""

import json
from pathlib import Path

import pytest
from sentence_transformers.sentence_transformer.modules import Pooling

from support.checkpoints import save_checkpoint, write_json
from support.cli import python
from support.families import FAMILIES, Family
from support.published import save, transformer

pytestmark = pytest.mark.slow

BERT, LLAMA, ROBERTA = FAMILIES["bert"], FAMILIES["llama"], FAMILIES["roberta"]
BLOCKS = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 28}
WINDOWS = {"attention_window": [8] * 4, "sep_token_id": 2}
NTK = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}

RUN = """
import sys
from whiten_export.commands.export import export
from whiten_runtime.ort.providers import silence_log
silence_log()
for folder in sys.argv[1:]:
    try:
        export.main([folder, "--whitening", "none", "--out", folder + "-bundle", "-q"])
    except SystemExit as end:
        print(end.code)
"""


def of_kind(family: Family, model_type: str, folder: Path, **changes: object) -> Path:
    """Write a checkpoint of another architecture with a family's tokenizer and sizes."""
    made = Family(model_type, family.vocabulary, {**family.config, **changes}, family.ids, family.tokenizer_config)
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
