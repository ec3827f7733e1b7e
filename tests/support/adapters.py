"""LoRA adapters that the real peft saves, and changes to their files."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

TARGETS = {"llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}


def save_adapter(base: Path, folder: Path, model_class: str, task: str | None, **options: Any) -> Path:
    """Save an adapter with noise in both of its factors: a new one changes nothing."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(2)
    network = getattr(transformers, model_class).from_pretrained(base)
    safetensors = options.pop("safe_serialization", True)
    targets = TARGETS[network.config.model_type]
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
