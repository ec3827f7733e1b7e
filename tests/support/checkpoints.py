"""Small random checkpoints, laid out as the hub's repositories are, and what is saved beside them.

`save_checkpoint("bert", folder)` writes the one of a family; the fixture `checkpoint` keeps it for the session.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from support.families import DECODERS, FAMILIES, MAX_LENGTH, WIDENED_LAYERS, Family

if TYPE_CHECKING:
    import pytest
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

_WIDTHS = frozenset(
    (
        *("hidden_size", "intermediate_size", "embedding_size", "intra_bottleneck_size"),
        *("dim", "hidden_dim", "n_embd", "n_inner", "emb_dim", "d_model", "d_kv", "d_ff"),
    )
)
"""Settings that grow with the width."""

_DEPTHS = frozenset(("num_hidden_layers", "n_layers", "n_layer", "num_layers"))


def rotary(**settings: Any) -> dict[str, Any]:
    """Return the settings of rotary embeddings as they are in a config: transformers 4 has other names for them."""
    import transformers

    if transformers.__version__ >= "5":
        return {"rope_parameters": settings}
    own = {name: settings[name] for name in ("rope_theta", "original_max_position_embeddings") if name in settings}
    return own if settings["rope_type"] == "default" else own | {"rope_scaling": settings}


def save_checkpoint(family: str | Family, directory: Path, widened: int = 1, **changes: Any) -> Path:
    """Write a random checkpoint, whose hidden states are `widened` times as wide as `WIDTH`, of fewer layers then.

    `changes` are settings of the architecture in place of the family's. Tests whose architecture this version of
    transformers does not have are skipped.
    """
    import pytest
    import transformers

    made = (FAMILIES | DECODERS)[family] if isinstance(family, str) else family
    if made.model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {made.model_type}")
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = made.vocabulary(directory)
    if made.tokenizer_config is not None:
        content = made.tokenizer_config | {"model_max_length": MAX_LENGTH}
        (directory / "tokenizer_config.json").write_text(json.dumps(content, indent=2), "utf-8")
    sizes = {name: value * widened if name in _WIDTHS else value for name, value in made.config.items()}
    if widened > 1:
        sizes |= dict.fromkeys(_DEPTHS & sizes.keys(), WIDENED_LAYERS)
        if "layer_types" in sizes:
            sizes["layer_types"] = sizes["layer_types"][-1 - WIDENED_LAYERS : -1]
    sizes |= {name: vocabulary[token] for name, token in made.ids.items()} | changes
    if "rope_parameters" in sizes:
        sizes |= rotary(**sizes.pop("rope_parameters"))
    config = transformers.AutoConfig.for_model(made.model_type, vocab_size=len(vocabulary) + made.unused, **sizes)
    network = random_network(config, noise=made.noise, small=made.small, widened=widened)
    network.save_pretrained(directory)
    return directory


def save_long_checkpoint(family: str, directory: Path, length: int, **changes: Any) -> Path:
    """Write a random checkpoint, as by `save_checkpoint`, for texts of so many tokens."""
    save_checkpoint(family, directory, max_position_embeddings=length, **changes)
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"model_max_length": length}), "utf-8")
    return directory


def random_network(
    config: "PretrainedConfig",
    network: str = "AutoModel",
    *,
    noise: float,
    small: str = "-",
    widened: int = 1,
) -> "PreTrainedModel":
    """Return a network of a class of transformers, with noise on every parameter: no two are equal and none is trivial.

    Parameters with `small` in their names get a tenth of the noise; all get less of it in a network that is widened.
    """
    import torch
    import transformers

    torch.manual_seed(1)
    made = getattr(transformers, network)
    random = made.from_config(config) if network.startswith("Auto") else made(config)
    with torch.no_grad():
        for name, parameter in random.named_parameters():
            parameter.add_(torch.randn_like(parameter) * noise / widened**0.5 * (0.1 if small in name else 1))
    return random


_TARGETS = {"llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}


def save_adapter(base: Path, folder: Path, model_class: str, task: str | None, **options: Any) -> Path:
    """Save a LoRA adapter, by peft, with noise in both of its factors: a new one changes nothing."""
    import pytest
    import torch
    import transformers

    pytest.importorskip("peft", reason="needs the extra test-all")
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(2)
    network = getattr(transformers, model_class).from_pretrained(base)
    safetensors = options.pop("safe_serialization", True)
    targets = _TARGETS[network.config.model_type]
    adapted = get_peft_model(network, LoraConfig(task_type=task, r=4, lora_alpha=8, target_modules=targets, **options))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder, safe_serialization=safetensors)
    return folder


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


OLD = "sentence_transformers.models."
"""Package of the modules in folders of sentence-transformers 2."""


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path


def change_json(path: Path, **fields: object) -> Path:
    return write_json(path, json.loads(path.read_text("utf-8")) | fields)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path)
    return path


def write_modules(root: Path, *kinds: str, first: str = "") -> Path:
    """Write modules.json: the first module in `first`, the others in 1_Kind, 2_Kind and so on.

    Args:
        root: folder of the model.
        kinds: names of classes; one with a dot is a whole class path.
        first: path of the first module.
    """
    listed = []
    for index, kind in enumerate(kinds):
        name = kind if "." in kind else OLD + kind
        path = first if index == 0 else f"{index}_{kind.rsplit('.', 1)[-1]}"
        listed.append({"idx": index, "name": str(index), "path": path, "type": name})
    write_json(root / "modules.json", listed)
    return root


def family_network(family: str) -> "torch.nn.Module":
    """Make the small random network of a family, with eager attention and frozen weights in float32."""
    import transformers

    from whiten_export.sources.families import family_of

    made = FAMILIES[family]
    ids = dict.fromkeys(made.ids, 1)
    config = transformers.AutoConfig.for_model(made.model_type, vocab_size=50, **(made.config | ids))
    network = random_network(config, family_of(made.model_type).model_class, noise=made.noise, small=made.small)
    network.set_attn_implementation("eager")
    return network.eval().requires_grad_(False)


def copy_modules_to(folder: Path, monkeypatch: "pytest.MonkeyPatch") -> None:
    """Let transformers copy a model's own code to a folder, and forget the code that was imported from another one."""
    import transformers

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in list(sys.modules) if name.split(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)


def save_model2vec(folder: Path, **settings: Any) -> Path:
    """Write a table of model2vec whose tokens are pieces of two letters, but for two of eight."""
    pieces = ["[PAD]", "[UNK]", *(a + b for a in "abcdef" for b in "ghijklmnop"), "aaaaaaaa", "bbbbbbbb"]
    tokenizer = Tokenizer(models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(1).normal(size=(len(pieces), 16)).astype(np.float32)
    write_tensors(folder / "model.safetensors", {"embeddings": table})
    write_json(folder / "config.json", {"model_type": "model2vec", "normalize": True} | settings)
    return folder
