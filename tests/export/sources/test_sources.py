"""Test what particular families need, and the treatment of unknown families."""

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from support.bundles import contents
from support.checkpoints import save_checkpoint, write_json, write_modules
from support.cli import invoke, ok, python, refused
from support.corpus import sentences
from support.families import FAMILIES, MAX_LENGTH, WIDENED
from support.vocabularies import write_tokenizer_json
from whiten import Encoder
from whiten_export.commands.export import export
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_export.sources import families
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = pytest.mark.slow

run = partial(invoke, export)


def test_unknown_family_must_pass_the_parity_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its entry in the registry, MobileBERT's vectors depend on padding."""
    monkeypatch.delitem(families.FAMILIES, "mobilebert")
    folder = save_checkpoint("mobilebert", tmp_path / "mobilebert", num_hidden_layers=1)
    result = run(folder, "--layers", "0", "--whitening", "none", "--out", tmp_path / "b")
    assert result.exit_code == 1
    assert "'mobilebert'" in result.stderr
    assert not (tmp_path / "b").exists()


def test_text_without_tokens_is_the_zero_vector_where_pytorch_gives_nan(tmp_path: Path) -> None:
    """LLaMA's float32 softmax gives NaN for a fully masked row when the rest is float64."""
    directory = save_checkpoint("llama", tmp_path / "llama", WIDENED)
    described = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(described | {"add_bos_token": False}))
    recipe = Recipe(str(directory), layers=(-1,), pooling="last", whitening=None)
    with Encoder(export_bundle(recipe, tmp_path / "b").path) as encoder:
        assert encoder.token_count("") == 0
        assert not encoder.encode("").any()


def test_default_max_length_is_at_most_512(tmp_path: Path) -> None:
    directory = save_checkpoint("bert", tmp_path / "long", num_hidden_layers=1)
    config = transformers.AutoConfig.from_pretrained(directory)
    config.max_position_embeddings = 2048
    transformers.AutoModel.from_config(config).save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    options = ("--layers", "0", "--whitening", "none", "--out")
    assert "512 tokens of the 2048" in ok("export", directory, *options, tmp_path / "a").stderr
    assert Encoder(tmp_path / "a").max_seq_length == 512
    ok("export", directory, *options, tmp_path / "b", "--max-length", 600)
    assert Encoder(tmp_path / "b").max_seq_length == 600
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 700}))
    write_modules(directory, "Transformer", "Pooling")
    (directory / "1_Pooling").mkdir(exist_ok=True)
    write_json(directory / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    ok("export", directory, *options, tmp_path / "c")
    assert Encoder(tmp_path / "c").max_seq_length == 700


def test_networks_that_are_not_encoders_are_refused(tmp_path: Path) -> None:
    directory = save_checkpoint("roberta", tmp_path / "odd")  # which has BART's tokenizer
    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    small |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 1200, "hidden_size": 16}
    config = transformers.AutoConfig.for_model("bart", **small)
    transformers.AutoModel.from_config(config).save_pretrained(directory)
    command = ("export", directory, "--layers", "0", "--whitening", "none", "--out", tmp_path / "b")
    assert "'bart'" in refused(*command, code=1)


def test_missing_pad_token_is_set(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Other programs need a pad token, which LLaMA does not have."""
    out = export_bundle(Recipe(str(checkpoint("llama", WIDENED)), layers=(0,), whitening=None), tmp_path / "b").path
    assert json.loads((out / "tokenizer_config.json").read_text())["pad_token"] == "</s>"
    assert json.loads((out / "whiten.json").read_text())["pad_token_id"] == 2


def test_merged_pieces_outside_the_vocabulary_are_unknown(tmp_path: Path) -> None:
    """XLM's vocabulary lacks some pieces that its merges make: for these, the original gives <unk>."""
    directory = save_checkpoint("xlm", tmp_path / "xlm", WIDENED)
    vocabulary = json.loads((directory / "vocab.json").read_text("utf-8"))
    words = [piece for piece in vocabulary if piece.endswith("</w>") and len(piece) > 7]
    dropped = words[::3]
    kept = [piece for piece in vocabulary if piece not in dropped]
    (directory / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(kept)}), "utf-8")
    texts = [*(piece.removesuffix("</w>") for piece in dropped[:20]), *sentences(50)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    network = transformers.AutoModel.from_pretrained(directory, dtype=torch.float64).eval()
    unknown = 0
    want = []
    for text in texts:
        batch = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        unknown += int((batch["input_ids"] == tokenizer.unk_token_id).sum())
        with torch.no_grad():
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            want.append(network(**inputs).last_hidden_state.mean(dim=1).numpy()[0])
    assert unknown > 20
    recipe = Recipe(str(directory), layers=(-1,), whitening=None)
    with Encoder(export_bundle(recipe, tmp_path / "b").path) as encoder:
        agreement = compare(encoder.encode(texts), np.stack(want))
    assert GATES["fp32"].passes(agreement), str(agreement)


BRANCHING = {
    "longformer": (
        "roberta",
        {"attention_window": [8], "sep_token_id": 2},
        "length",
    ),
    "big_bird": (
        "bert",
        {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
        "original_full",
    ),
}


@pytest.mark.parametrize("kind", BRANCHING)
def test_network_that_branches_on_the_length_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    like, settings, words = BRANCHING[kind]
    family = replace(FAMILIES[like], model_type=kind)
    if kind == "big_bird":
        described = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        write = partial(write_tokenizer_json, template="[CLS] $A [SEP]")
        family = replace(family, vocabulary=write, tokenizer_config=described)
    folder = save_checkpoint(family, tmp_path / kind, num_hidden_layers=1, **settings)
    command = ("export", folder, "--whitening", "none", "--out", tmp_path / "b")
    assert words in refused(*command, code=2 if kind == "big_bird" else 1)
    assert not (tmp_path / "b").exists()
    if kind == "big_bird":
        config = json.loads((folder / "config.json").read_text())
        write_json(folder / "config.json", config | {"attention_type": "original_full"})
        ok(*command)
        write_json(folder / "config.json", config)
        ok(*command, "--max-length", 28, "--force")


ORDER = "print(*{'full_attention', 'sliding_attention'})"

EXPORTS = """
import sys
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
for number, model in enumerate(sys.argv[2:]):
    export_bundle(Recipe(model, whitening=None), f"{sys.argv[1]}/bundle-{number}")
"""


def test_a_bundle_does_not_depend_on_the_order_of_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their order differs from process to process, by the seed of hashes; these sets are of both kinds of layers."""
    from whiten_export.sources import pytorch

    monkeypatch.setattr(pytorch, "trace", inspect.unwrap(pytorch.trace))  # not those of other processes
    own = " ".join({"full_attention", "sliding_attention"})
    environments = [os.environ | {"PYTHONHASHSEED": str(seed)} for seed in range(64)]
    other = next(each for each in environments if python(ORDER, env=each).stdout.strip() != own)
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}
    models = [save_checkpoint(family, tmp_path / family, **kinds) for family in ("modernbert", "gemma3_text")]
    python(EXPORTS, tmp_path / "other", *models, check=True, env=other)
    for number, model in enumerate(models):
        bundle = export_bundle(Recipe(str(model), whitening=None), tmp_path / "own" / f"bundle-{number}").path
        assert contents(bundle) == contents(tmp_path / "other" / f"bundle-{number}")
