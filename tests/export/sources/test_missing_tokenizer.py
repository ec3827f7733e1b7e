"""Test models whose tokenizer is missing, empty or another's: all texts would have one vector."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from support.checkpoints import save_checkpoint, write_json, write_modules, write_tensors
from support.cli import ok, refused
from support.families import DECODERS, FAMILIES
from support.onnx_folders import rename_last, save_encoder
from support.vocabularies import SIZE
from whiten_export.proof.gate import Case, compute_expected
from whiten_export.proof.reference import Composition, Reference
from whiten_runtime.errors import ParityError
from whiten_runtime.reporter import Reporter
from whiten_whitening.statistics import count_unknown

RAW = ("--layers", "1", "--whitening", "none")
_TOKENIZERS = ("tokenizer*", "vocab*", "merges*", "*.model", "special*")


def without_tokenizer(family: str, folder: Path) -> Path:
    save_checkpoint((FAMILIES | DECODERS)[family], folder)
    for path in [path for name in _TOKENIZERS for path in folder.glob(name)]:
        path.unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "llama", "qwen3"])
def test_a_checkpoint_without_a_tokenizer_is_refused(family: str, tmp_path: Path) -> None:
    folder = without_tokenizer(family, tmp_path / "m")
    assert "no tokenizer" in refused("export", folder, *RAW, "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_another_class_than_that_of_the_files_reads_nothing(tmp_path: Path) -> None:
    folder = save_checkpoint("bert", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"tokenizer_class": "XLMRobertaTokenizer"})
    (folder / "tokenizer_config.json").unlink()
    assert "5 tokens" in refused("export", folder, *RAW, "--out", tmp_path / "b")


def test_an_empty_tokenizer_that_was_saved_is_refused(tmp_path: Path) -> None:
    folder = without_tokenizer("bert", tmp_path / "m")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    assert (folder / "tokenizer.json").is_file()
    assert "5 tokens" in refused("export", folder, *RAW, "--out", tmp_path / "b")


def test_a_folder_of_sentence_transformers_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_modules(without_tokenizer("bert", tmp_path / "m"), "Transformer", "Pooling")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    assert "has no tokenizer" in refused("export", folder, "--out", tmp_path / "b")


def test_an_onnx_encoder_without_a_tokenizer_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = save_encoder(checkpoint("bert"), tmp_path / "m", (4,), rename_last)
    for path in [path for name in _TOKENIZERS for path in folder.glob(name)]:
        path.unlink(missing_ok=True)
    assert "has no tokenizer" in refused("export", folder, "--whitening", "none", "--out", tmp_path / "b")


def test_a_table_with_an_empty_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_modules(tmp_path / "m", "StaticEmbedding")
    backend = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
    backend.add_special_tokens(["[UNK]"])
    backend.save(str(folder / "tokenizer.json"))
    write_tensors(folder / "model.safetensors", {"embedding.weight": np.ones((1, 4), np.float32)})
    assert "1 tokens" in refused("export", folder, "--out", tmp_path / "b")


def test_a_tokenizer_with_far_fewer_tokens_than_the_embeddings_have_rows_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(replace(FAMILIES["bert"], unused=20_000), tmp_path / "m")
    assert "embeddings 21," in refused("export", folder, *RAW, "--out", tmp_path / "b")


class Constant(Reference):
    name = "a network without weights"

    def pooled(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        return self.vector[None, None].repeat(len(input_ids), 1)

    def __init__(self, *vector: float) -> None:
        self.vector = np.array(vector)


def test_a_model_that_gives_one_vector_for_all_texts_is_refused() -> None:
    from whiten_export.proof.gate import Definition

    case = Case([[1], [2]], texts=("a", "b"))
    with pytest.raises(ParityError, match="one vector for all 2 probe texts"):
        compute_expected(Definition(Constant(1, 2), Composition((0,)), 2), [case], Reporter())
    compute_expected(Definition(Constant(0, 0), Composition((0,)), 2), [case], Reporter())


@pytest.mark.slow
def test_texts_of_unknown_tokens_are_warned_of(tmp_path: Path) -> None:
    """Letters in upper case alone, as of proteins; English is lower-cased here."""
    letters = [f"{text}{letter}" for text in ("", "##") for letter in "ACDEFGHIKLMNPQRSTVWY"]
    folder = save_checkpoint(replace(FAMILIES["bert"], unused=45 - SIZE), tmp_path / "m", num_hidden_layers=1)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    stderr = ok("export", folder, *RAW, "--out", tmp_path / "b").stderr
    assert "unknown" in stderr


def test_unknown_tokens_are_counted_without_special_ones() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "a": 2}, "[UNK]"))
    backend.add_special_tokens(["[UNK]", "[CLS]"])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert count_unknown(backend, ["[CLS] x a", "[CLS] x"]) == (2, 3)
    pieces = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    assert count_unknown(pieces, ["ab", "c"]) == (2, 3)
    assert count_unknown(Tokenizer(models.BPE({"a": 0, "b": 1}, [])), ["abc"]) == (0, 2)
