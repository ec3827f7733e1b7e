"""Test small folders in the form of embedding models of 2025 and 2026, against sentence-transformers.

Their settings are spelled as the repositories on the hub spell them, where transformers writes others.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn

from support.cli import ok, refused
from support.families import DECODERS, FAMILIES, Family
from support.once import once
from support.published import SIZE, TEXTS, peer, save, transformer
from whiten import Encoder
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = pytest.mark.slow

QUERY = "Instruct: Given a web search query, retrieve relevant passages\nQuery: "


def _with(family: str, kind: str, **settings: Any) -> Family:
    """Return a family whose architecture and settings are other ones."""
    base = (FAMILIES | DECODERS)[family]
    return replace(base, model_type=kind, config=base.config | settings)


def _settings(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the config.json of the network of a folder."""
    path = folder / "config.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def _last(family: str | Family, path: Path, *rest: nn.Module, **prompts: str) -> None:
    """Write a decoder whose last token is the vector."""
    save([transformer(family), Pooling(SIZE, "lasttoken"), *rest], path, prompts=prompts)


def _first(family: str | Family, path: Path, **prompts: str) -> None:
    """Write an encoder whose first token, divided by its norm, is the vector."""
    save([transformer(family), Pooling(SIZE, "cls"), Normalize()], path, prompts=prompts)


def _modernbert(path: Path) -> None:
    """Write a ModernBERT with the settings of its first repositories."""
    _first("modernbert", path)

    def to_hub(config: dict[str, Any]) -> None:
        rotary = config.pop("rope_parameters")
        config.pop("layer_types", None)
        config |= {
            "global_attn_every_n_layers": 3,
            "global_rope_theta": rotary["full_attention"]["rope_theta"],
            "local_rope_theta": rotary["sliding_attention"]["rope_theta"],
            "position_embedding_type": "sans_pos",
            "torch_dtype": "float32",
        }

    _settings(path, to_hub)


def _nomic(path: Path) -> None:
    """Write a NomicBERT with the names that its authors' code, which is not there, reads."""
    save([transformer("nomic_bert"), Pooling(SIZE, "mean")], path, prompts={"query": "search_query: "})
    names = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon",
    }

    def to_hub(config: dict[str, Any]) -> None:
        config |= {theirs: config.pop(name) for name, theirs in names.items()}
        config["rotary_emb_base"] = config.pop("rope_parameters")["rope_theta"]
        config |= {"activation_function": "swiglu", "rotary_emb_fraction": 1.0, "prenorm": False}

    _settings(path, to_hub)


def _gemma(path: Path) -> None:
    network = transformer("gemma3_text")
    dense = [
        Dense(SIZE, 2 * SIZE, activation_function=nn.Identity()),
        Dense(2 * SIZE, SIZE, activation_function=nn.Identity()),
    ]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    save([network, Pooling(SIZE, "mean"), *dense, Normalize()], path, prompts=prompts)


_LFM2 = _with("qwen3", "lfm2", layer_types=["conv", "conv", "full_attention", "conv"], conv_L_cache=3)
_GEMMA_2 = _with(
    "gemma3_text", "embedding_gemma2_text", hidden_size_per_layer_input=16, embedding_dim=2 * SIZE, per_layer_config={}
)
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "decoder_sparse_step": 1}

RECENT: Mapping[str, Callable[[Path], object]] = {
    "granite-r2, gte-modernbert": _modernbert,
    "arctic-embed-l-v2, bge-m3": lambda path: _first("xlm-roberta", path, query="query: "),
    "arctic-embed-m-v2": lambda path: _first("gte", path, query="query: "),
    "nomic-v1.5": _nomic,
    "jina-v5-nano": lambda path: _last(
        _with("modernbert", "eurobert", num_key_value_heads=2),
        path,
        Normalize(),
        query="Query: ",
        document="Document: ",
    ),
    "jina-v5-small": lambda path: _last("qwen3", path, Normalize(), query="Query: ", document="Document: "),
    "lfm2.5": lambda path: save([transformer(_LFM2), Pooling(SIZE, "mean"), Normalize()], path),
    "nemotron-3": lambda path: save(
        [transformer(_with("qwen3", "ministral3", is_causal=False)), Pooling(SIZE, "mean"), Normalize()],
        path,
        prompts={"query": "query: ", "passage": "passage: "},
    ),
    "harrier": lambda path: _last("qwen3", path, Normalize(), web_search_query=QUERY),
    "embeddinggemma": _gemma,
    "embeddinggemma-2": lambda path: save([transformer(_GEMMA_2), Pooling(2 * SIZE, "mean"), Normalize()], path),
    "qwen3-moe": lambda path: _last(_with("qwen3", "qwen3_moe", **_MOE), path, Normalize(), query=QUERY),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return lambda name: once(tmp_path_factory, f"recent-{name}", lambda path: RECENT[name](path))


@pytest.mark.parametrize("name", sorted(RECENT.keys() - {"nomic-v1.5"}))
def test_a_recent_model_gives_the_vectors_of_sentence_transformers(
    folder: Callable[[str], Path], name: str, check_export: Callable[..., None], tmp_path: Path
) -> None:
    check_export(folder(name), tmp_path / "bundle", TEXTS)


def test_settings_of_nomic_are_obeyed_by_the_names_of_its_own_code(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Compare with the same weights beside a config.json that transformers wrote: it reads no other names."""
    written = tmp_path / "written"
    save([transformer("nomic_bert"), Pooling(SIZE, "mean")], written, prompts={"query": "search_query: "})
    ok("export", folder("nomic-v1.5"), "--out", tmp_path / "bundle")
    with Encoder(tmp_path / "bundle") as encoder:
        for text in ("", "search_query: "):
            want = peer(written).encode(TEXTS, prompt=text, batch_size=1)
            assert GATES["fp32"].passes(compare(encoder.encode(TEXTS, prompt=text), want))


@pytest.mark.parametrize(
    "settings",
    [
        {"rotary_emb_base": 500, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rotary_emb_base": "500"},
        {"n_inner": 48, "intermediate_size": 64},
    ],
    ids=str,
)
def test_settings_of_nomic_that_contradict_each_other_are_refused(
    folder: Callable[[str], Path], settings: dict[str, Any], tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder("nomic-v1.5"), tmp_path / "copied"))
    _settings(copied, lambda config: config.update(settings))
    assert f"{next(iter(settings))} is {next(iter(settings.values()))!r}" in refused("export", copied, code=1)


def test_a_quantiser_behind_the_pooling_is_left_out_by_its_name(tmp_path: Path) -> None:
    """pplx-embed rounds its vectors by a module of its own code, which is not run."""
    folder = tmp_path / "pplx"
    save([transformer(_with("qwen3", "qwen3", is_causal=False)), Pooling(SIZE, "mean")], folder)
    model, listed = peer(folder), folder / "modules.json"
    modules = json.loads(listed.read_text("utf-8"))
    quantiser = {"idx": 2, "name": "2", "path": "", "type": "st_quantize.FlexibleQuantizer"}
    listed.write_text(json.dumps([*modules, quantiser]), "utf-8")
    assert "--leave-out FlexibleQuantizer" in refused("export", folder, "--out", tmp_path / "b", code=1)
    leave_out = ("--leave-out", "FlexibleQuantizer")
    for other in ("Pooling", "Quantizer"):
        assert f"leave-out is {other}," in refused("export", folder, *leave_out, "--leave-out", other)
    ok("export", folder, *leave_out, "--out", tmp_path / "b")
    with Encoder(tmp_path / "b") as encoder:
        assert encoder.manifest.source.left_out == ("FlexibleQuantizer",)
        assert encoder.manifest.published is not None
        assert GATES["fp32"].passes(compare(encoder.encode(TEXTS), model.encode(TEXTS, batch_size=1)))
    assert "FlexibleQuantizer" in ok("info", tmp_path / "b").stdout
    assert "FlexibleQuantizer" in (tmp_path / "b" / "README.md").read_text("utf-8")
