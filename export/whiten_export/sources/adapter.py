"""LoRA adapters (Hu et al., 2022), merged into the weights that they belong to."""

import json
import warnings
from pathlib import Path

from torch import nn

from whiten_export.checkpoint import ADAPTER_CONFIG
from whiten_runtime.errors import WhitenError

_MODEL_CLASSES = {"CAUSAL_LM": "AutoModelForCausalLM", "SEQ_CLS": "AutoModelForSequenceClassification"}
"""Class of transformers that an adapter was trained on, by its task: the names of its weights follow from it."""


def adapter_model_class(adapter: Path, otherwise: str) -> str:
    """Class of transformers that an adapter's weights fit."""
    task = json.loads((adapter / ADAPTER_CONFIG).read_text("utf-8")).get("task_type")
    return _MODEL_CLASSES.get(task, otherwise)


def merge_adapter(network: nn.Module, adapter: Path) -> nn.Module:
    """The network with the adapter's products added to its weights, without the head of its task.

    Raises:
        WhitenError: peft is not installed, or the adapter does not fit the network.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise WhitenError("merging a LoRA adapter needs peft; install it with pip install 'whiten[lora]'") from None
    try:
        with warnings.catch_warnings():
            # What an adapter lacks, peft leaves at zero with a warning.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            merged = PeftModel.from_pretrained(network, str(adapter)).merge_and_unload()
    except (ValueError, KeyError, RuntimeError, OSError, UserWarning) as error:
        reason = " ".join(str(error).split())[:300]
        raise WhitenError(f"{adapter}: the adapter does not fit the model that it names ({reason})") from error
    inner = getattr(merged, "base_model", merged)
    assert isinstance(inner, nn.Module)
    return inner
