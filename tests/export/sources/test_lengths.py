"""Test how many tokens a network takes: positions behind the padding id, and rotary embeddings that are scaled."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.checkpoints import rotary, save_checkpoint
from support.cli import ok, refused
from support.families import FAMILIES, MAX_LENGTH, WIDENED, Family
from support.vocabularies import write_tokenizer_json
from whiten import Encoder
from whiten_export.sources.config import empty_positions, has_positions
from whiten_export.sources.families import BatchLimit, batch_limit, positions_before
from whiten_export.sources.model import TokenModel
from whiten_export.sources.network import load_config, quiet
from whiten_export.sources.open_model import open_model
from whiten_export.sources.pytorch import fix_frequencies
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.parity import GATES, compare

_SHALLOW = {"num_hidden_layers": 1}  # the others are traced for all tests of families
BEHIND_PADDING: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("roberta", {}),
    "mpnet": ("mpnet", {}),
    "data2vec-text": ("roberta", _SHALLOW),
    "roberta-prelayernorm": ("roberta", _SHALLOW),
    "xlm-roberta-xl": ("roberta", _SHALLOW),
    "xmod": ("xlm-roberta", _SHALLOW | {"languages": ["en_XX"], "default_language": "en_XX"}),
}
_ENDS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
NONE = ("--layers", -1, "--whitening", "none")


def opened(folder: Path) -> TokenModel:
    return open_model(resolve(str(folder)))


def family_of(kind: str) -> Family:
    family = replace(FAMILIES[BEHIND_PADDING[kind][0]], model_type=kind)
    if kind != "xlm-roberta-xl":
        return family
    write = partial(write_tokenizer_json, specials=tuple(_ENDS.values()), template="<s> $A </s>")
    described = {"tokenizer_class": "PreTrainedTokenizerFast"} | _ENDS
    return replace(family, vocabulary=write, tokenizer_config=described)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BEHIND_PADDING)
def test_positions_up_to_the_padding_id_are_not_usable(kind: str, tmp_path: Path) -> None:
    folder = save_checkpoint(family_of(kind), tmp_path / kind, WIDENED, **BEHIND_PADDING[kind][1])
    assert transformers.AutoConfig.from_pretrained(folder).max_position_embeddings == MAX_LENGTH + 2
    assert f"positions for {MAX_LENGTH} tokens" in refused("export", folder, "--max-length", MAX_LENGTH + 1)
    ok("export", folder, *NONE, "--out", tmp_path / "b")
    with Encoder(tmp_path / "b") as encoder:
        assert encoder.max_seq_length == MAX_LENGTH
        assert np.isfinite(encoder.encode(["word " * n for n in (0, 1, 100, 1000)])).all()


def test_positions_of_a_network_with_a_padding_id_but_none_before_text(tmp_path: Path) -> None:
    assert opened(save_checkpoint("bert", tmp_path / "bert")).positions == MAX_LENGTH
    biased = opened(save_checkpoint("deberta-v2", tmp_path / "deberta", position_biased_input=True))
    assert biased.positions == MAX_LENGTH


def test_only_a_table_of_positions_bounds_a_network(tmp_path: Path) -> None:
    for family in ("deberta-v2", "llama", "modernbert"):
        model = opened(save_checkpoint(family, tmp_path / family))
        assert (model.positions, model.stated_positions) == (None, MAX_LENGTH), family


_ROTARY, _LEARNED = {"position_embedding_type": "rotary"}, {"position_embedding_type": "absolute"}
_RELATIVE = {"relative_attention": True, "position_biased_input": False}


@pytest.mark.parametrize(
    ("kind", "settings", "wanted"),
    [
        *((kind, {}, True) for kind in ("bert", "camembert", "clip_text_model", "distilbert", "gpt2", "mpnet", "opt")),
        *((kind, {}, True) for kind in ("roformer", "xlm", "deberta")),
        *((kind, {}, False) for kind in ("eurobert", "gte", "llama", "mistral", "modernbert", "nomic_bert", "qwen3")),
        ("t5", {}, False),
        ("deberta", _RELATIVE, False),
        ("deberta-v2", _RELATIVE, False),
        ("esm", {"pad_token_id": 1} | _LEARNED, True),
        ("esm", {"pad_token_id": 1} | _ROTARY, False),
    ],
)
def test_a_table_of_positions_is_known_from_the_network(kind: str, settings: dict[str, Any], wanted: bool) -> None:
    """Networks of all these kinds fail beyond their positions if they have a table, and take longer texts if not."""
    sizes = {"num_hidden_layers": 1, "num_layers": 1, "n_layer": 1, "n_layers": 1, "vocab_size": 150_000}
    config = transformers.AutoConfig.for_model(kind, max_position_embeddings=24, **sizes, **settings)
    assert has_positions(config, trust_remote_code=False) == wanted


@pytest.mark.slow
def test_registry_knows_all_networks_of_transformers() -> None:
    """For ONNX encoders, the config alone tells."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    compared = 0
    for kind, kind_of_config in CONFIG_MAPPING.items():
        try:
            config = kind_of_config()
            config.num_hidden_layers = 1
        except Exception:  # a config that needs arguments, or has no such setting
            continue
        positions = getattr(config, "max_position_embeddings", None)
        if kind_of_config not in MODEL_MAPPING or not isinstance(positions, int) or kind in _NO_TEXT_ENCODERS:
            continue
        found = empty_positions(config, trust_remote_code=False)
        if kind in ("lilt", "markuplm"):  # whose padding has the id 0
            assert found == 1
        assert found == positions_before(config), kind
        compared += 1
    assert compared > 100


_NO_TEXT_ENCODERS = ("fsmt", "lxmert", "prophetnet")
"""Networks of several parts, whose tables have a padding id of their own."""


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return rotary(rope_type=kind, rope_theta=10000.0, factor=4.0, **more)


def config_of(kind: str = "llama", positions: int = 128, **settings: Any) -> Any:
    return transformers.AutoConfig.for_model(kind, max_position_embeddings=positions, **settings)


LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0]}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (config_of(), None),
        (config_of(**rope("linear")), None),
        (config_of(**rope("yarn", original_max_position_embeddings=32)), None),
        (config_of(**rope("dynamic")), BatchLimit("rope scaling (dynamic)", 128)),
        (
            config_of(**rope("dynamic", original_max_position_embeddings=32)),
            BatchLimit("rope scaling (dynamic)", 128),
        ),
        (config_of(rope_scaling={"type": "dynamic", "factor": 2.0}), BatchLimit("rope scaling (dynamic)", 128)),
        (
            config_of(**rope("longrope", original_max_position_embeddings=32, **LONG)),
            BatchLimit("rope scaling (longrope)", 32),
        ),
        (config_of("bert"), None),
    ],
)
def test_scaling_that_depends_on_the_length_of_a_batch(config: Any, wanted: BatchLimit | None) -> None:
    assert batch_limit(config) == wanted


def test_every_scaling_of_transformers_is_known() -> None:
    """A kind that is new needs a look at what it depends on."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE_INIT_FUNCTIONS) <= {"default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "llama3"])
def test_frequencies_depend_on_the_length_only_where_a_limit_says_so(kind: str) -> None:
    """Compare the positions of a network's first tokens alone with those beside a long text."""
    more = LONG if kind == "longrope" else {}
    more |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 50}
    config = config_of(**rope(kind, original_max_position_embeddings=32, **more), **sizes)
    with quiet():
        rotary = transformers.AutoModel.from_config(config).rotary_emb
    scaling = batch_limit(config)

    def first(length: int) -> torch.Tensor:
        cosines: torch.Tensor = rotary(torch.zeros(1, length, 32), torch.arange(length)[None])[0][:, :8]
        return cosines.clone()

    short = first(8)
    if scaling is None:
        assert torch.equal(first(500), short)
        return
    assert torch.equal(first(scaling.tokens), short)
    assert not torch.equal(first(scaling.tokens + 1), short)
    assert torch.equal(first(8), short)
    rotary.__dict__["rope_type"] = kind
    fix_frequencies(rotary)
    assert torch.equal(first(scaling.tokens + 1), short)


def scaled(folder: Path, kind: str) -> Path:
    """Save a network for 96 positions; longrope scales texts of more than 32 tokens, dynamic those of more than 96."""
    more = rope(kind, original_max_position_embeddings=32, **(LONG if kind == "longrope" else {}))
    return save_checkpoint("llama", folder, max_position_embeddings=96, num_hidden_layers=1, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_length_beyond_which_neighbours_would_matter_is_refused(kind: str, tmp_path: Path) -> None:
    folder = scaled(tmp_path / "model", kind)
    limit = {"dynamic": 96, "longrope": 32}[kind]
    if kind == "longrope":
        line = refused("export", folder, "--max-length", limit + 1, *NONE)
        assert "model's rope scaling (longrope)" in line
        assert "--max-length 32" in line
    ok("export", folder, "--max-length", limit, *NONE, "--out", tmp_path / "b")
    texts = ["a cat", "the dog and the fox run over the field " * 20, "x"]
    with Encoder(tmp_path / "b") as encoder:
        vectors = encoder.encode(texts)
        ids = [encoder._tokenizer.cut(row) for row in encoder._tokenizer.tokenize(texts)]
    with quiet(), torch.no_grad():
        network = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
        states = [network(torch.tensor([row]), output_hidden_states=True).hidden_states[-1] for row in ids]
    wanted = np.stack([state[0].mean(dim=0).numpy() for state in states])
    assert GATES["fp32"].passes(compare(vectors, wanted))
    assert load_config(resolve(str(folder)), False).max_position_embeddings == 96
