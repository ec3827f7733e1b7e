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
from whiten_export.sources.networks.weight_files import explaining
from whiten_runtime.errors import WhitenError

_UNUSED = re.compile(r"^(pooler|lm_head|score|classifier)\.")
"""Names of weights that no hidden state depends on."""

_BUFFERS = re.compile(
    r"(^|\.)(position_ids|inv_freq|masked_bias|token_type_ids|attn(\.attention)?\.bias|relative_position_bucket)$"
)
"""Names of constants that older checkpoints stored among the weights."""


def load_network(checkpoint: Checkpoint, config: Any, trust_remote_code: bool, pooler: bool = False) -> nn.Module:
    """Load the weights in float32, in inference mode; merge those of a LoRA adapter into its base."""
    name = family_of(config.model_type).model_class
    if checkpoint.adapter is not None:
        name = adapter_model_class(checkpoint.adapter, name)
    with explaining(checkpoint.weights):
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
    if not isinstance(network, nn.Module):
        raise WhitenError(f"'{checkpoint.model}' loads as {type(network).__name__}; wanted a PyTorch module")
    _check_weights(checkpoint, config.model_type, network, report, pooler)
    if checkpoint.adapter is not None:
        network = merge_adapter(network, checkpoint.adapter)
    return network.eval().requires_grad_(False)


def _check_weights(checkpoint: Checkpoint, kind: str, network: nn.Module, report: Any, pooler: bool) -> None:
    """Check that the network has all its weights, and that the checkpoint has none for it that are not taken.

    A pooler or a head that a checkpoint lacks is random too, but no hidden state depends on it.
    """
    missing = sorted(
        name for name in report["missing_keys"] if not _UNUSED.search(name) or (pooler and name.startswith("pooler."))
    )
    if missing:
        raise WhitenError(
            f"{checkpoint.directory}: {len(missing)} weights are missing, such as '{missing[0]}'; "
            f"this is not a complete {kind} checkpoint"
        )
    parts = {name for name, _ in network.named_children()}
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    surplus = sorted(
        name
        for name in report["unexpected_keys"]
        if (inner := name.removeprefix(prefix)).split(".")[0] in parts
        and not _BUFFERS.search(inner)
        and (pooler or not _UNUSED.search(inner))
    )
    if surplus:
        raise WhitenError(
            f"{checkpoint.directory}: transformers {transformers.__version__} does not take {len(surplus)} weights of "
            f"this {kind} network, such as '{surplus[0]}', so it would compute other vectors; use a version that does"
        )
