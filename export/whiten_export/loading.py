"""A checkpoint's config, tokenizer and weights, loaded with transformers and checked for silent gaps."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn

from whiten_export.checkpoint import Checkpoint
from whiten_runtime.errors import UsageError, WhitenError


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the chatter of torch and transformers off stderr."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def load_config(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    """Load the config.

    Raises:
        WhitenError: transformers cannot read it, or it asks for code that was not allowed.
    """
    return _load(transformers.AutoConfig, checkpoint, trust_remote_code)


def load_tokenizer(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    """Load the tokenizer that PyTorch users of this checkpoint would get.

    Raises:
        WhitenError: transformers cannot load it.
    """
    return _load(transformers.AutoTokenizer, checkpoint, trust_remote_code)


def load_network(checkpoint: Checkpoint, config: Any, trust_remote_code: bool) -> nn.Module:
    """Load the weights in float32, in inference mode.

    Raises:
        WhitenError: transformers cannot load them, or some are missing: it would fill them with random numbers.
    """
    network, report = _load(
        transformers.AutoModel,
        checkpoint,
        trust_remote_code,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    # A pooler that a checkpoint lacks is random too, but no embedding here passes through it.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise WhitenError(
            f"{checkpoint.directory}: {len(missing)} weights are missing, such as '{missing[0]}'; "
            f"this is not a complete {config.model_type} checkpoint"
        )
    if not isinstance(network, nn.Module):
        raise WhitenError(f"'{checkpoint.model}' loads as {type(network).__name__}; wanted a PyTorch module")
    return network.eval().requires_grad_(False)


def _load(factory: Any, checkpoint: Checkpoint, trust_remote_code: bool, **options: Any) -> Any:
    try:
        with quiet():
            return factory.from_pretrained(
                checkpoint.directory, trust_remote_code=trust_remote_code, local_files_only=True, **options
            )
    except (ValueError, OSError, KeyError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if "trust_remote_code" in reason:
            raise UsageError(
                f"'{checkpoint.model}' comes with Python code of its own; read it, then allow it with "
                "--trust-remote-code"
            ) from error
        raise WhitenError(f"transformers cannot load '{checkpoint.model}': {reason}") from error
