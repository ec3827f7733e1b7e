"""Merge LoRA adapters (Hu et al., 2022) into the weights that they belong to."""

import json
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from whiten_export.sources.checkpoints.checkpoint import ADAPTER_CONFIG
from whiten_export.sources.networks.hugging_face import quiet
from whiten_export.sources.networks.weight_files import explaining
from whiten_runtime.errors import WhitenError

_MODEL_CLASSES = {
    "CAUSAL_LM": ("ForCausalLM", "AutoModelForCausalLM"),
    "SEQ_CLS": ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "TOKEN_CLS": ("ForTokenClassification", "AutoModelForTokenClassification"),
}
"""For each task of an adapter, the suffix and the class of the model it was trained on, which determine its keys."""


def adapter_model_class(adapter: Path, otherwise: str) -> str:
    """Return the name of the transformers class that an adapter's weights fit."""
    config = _config(adapter)
    trained_on = str((config.get("auto_mapping") or {}).get("base_model_class"))  # set where there is no task
    for task, (ending, model_class) in _MODEL_CLASSES.items():
        if config.get("task_type") == task or trained_on.endswith(ending):
            return model_class
    return otherwise


def merge_adapter(network: nn.Module, adapter: Path) -> nn.Module:
    """Return the network with the adapter's products added to its weights, without the head of its task."""
    try:
        from peft import PeftModel
    except ImportError:
        raise WhitenError("merging a LoRA adapter needs peft; install it with pip install 'whiten[lora]'") from None
    try:
        with quiet(), explaining(() if list(adapter.glob("*.safetensors")) else adapter.glob("adapter_model.bin")):
            # peft leaves weights that an adapter lacks at zero, with a warning.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            loaded = PeftModel.from_pretrained(network, str(adapter))
    except WhitenError:
        raise
    except Exception as error:  # peft's exceptions share no base class
        reason = " ".join(str(error).split())[:300]
        raise WhitenError(f"{adapter}: the adapter does not fit the model that it names ({reason})") from error
    if not hasattr(loaded, "merge_and_unload"):
        raise WhitenError(f"{adapter}: holds {_config(adapter).get('peft_type')}, which is not merged; wanted LoRA")
    with quiet():
        merged = loaded.merge_and_unload()
    inner = getattr(merged, "base_model", merged)
    assert isinstance(inner, nn.Module)
    return inner


def _config(adapter: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((adapter / ADAPTER_CONFIG).read_text("utf-8"))
    return content
