"""Load a checkpoint's weights with transformers, and check that none is missing."""

import re
from typing import Any

import torch
import transformers
from torch import nn

from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.families import family_of
from whiten_export.sources.networks.adapter import adapter_model_class, merge_adapter
from whiten_export.sources.networks.hugging_face import from_pretrained
from whiten_runtime.errors import WhitenError

_UNUSED = re.compile(r"^(pooler|lm_head|score|classifier)\.")
"""Names of weights that no hidden state depends on."""


def load_network(checkpoint: Checkpoint, config: Any, trust_remote_code: bool) -> nn.Module:
    """Load the weights in float32, in inference mode; merge those of a LoRA adapter into its base.

    Raises:
        WhitenError: transformers cannot load them, or some are missing: it would fill them with random numbers.
    """
    name = family_of(config.model_type).model_class
    if checkpoint.adapter is not None:
        name = adapter_model_class(checkpoint.adapter, name)
    network, report = from_pretrained(
        getattr(transformers, name),
        checkpoint.directory,
        checkpoint,
        trust_remote_code,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    # A pooler that a checkpoint lacks is random too, but no embedding here passes through it.
    missing = sorted(name for name in report["missing_keys"] if not _UNUSED.search(name))
    if missing:
        raise WhitenError(
            f"{checkpoint.directory}: {len(missing)} weights are missing, such as '{missing[0]}'; "
            f"this is not a complete {config.model_type} checkpoint"
        )
    if not isinstance(network, nn.Module):
        raise WhitenError(f"'{checkpoint.model}' loads as {type(network).__name__}; wanted a PyTorch module")
    if checkpoint.adapter is not None:
        network = merge_adapter(network, checkpoint.adapter)
    return network.eval().requires_grad_(False)
