"""Load a checkpoint's config and tokenizer with transformers, and say in how many threads PyTorch may compute."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.families import family_of
from whiten_runtime.errors import UsageError, WhitenError


@contextmanager
def quiet() -> Iterator[None]:
    """Keep log messages and warnings of torch and transformers off stderr."""
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
    """Load the config."""
    return from_pretrained(transformers.AutoConfig, checkpoint.directory, checkpoint, trust_remote_code)


def load_tokenizer(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    """Load the tokenizer that PyTorch users of this checkpoint get, with the lower-casing that the catalogue sets."""
    known = checkpoint.entry.tokenizer.lowercase_override if checkpoint.entry else None
    casing = {} if known is None else {"do_lower_case": known}
    return from_pretrained(
        transformers.AutoTokenizer, checkpoint.tokenizer_directory, checkpoint, trust_remote_code, **casing
    )


def from_pretrained(
    factory: Any, directory: Path, checkpoint: Checkpoint, trust_remote_code: bool, **options: Any
) -> Any:
    """Call `factory.from_pretrained` on local files alone."""
    try:
        with quiet():
            return factory.from_pretrained(
                directory, trust_remote_code=trust_remote_code, local_files_only=True, **options
            )
    except (ValueError, OSError, KeyError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if "trust_remote_code" in reason:
            raise UsageError(
                f"'{checkpoint.model}' comes with Python code of its own; read it, then allow it with "
                "--trust-remote-code"
            ) from error
        raise WhitenError(f"transformers cannot load '{checkpoint.model}': {reason}") from error


_SAFE = find_spec("transformers.utils.output_capturing") is not None
"""Whether transformers collects hidden states for each thread apart; before version 5 it replaced blocks' methods."""

_REMEMBERING = ("dynamic", "longrope")
"""Kinds of rotary embeddings that keep frequencies for the longest text so far."""


@contextmanager
def one_thread() -> Iterator[int]:
    """Compute every operator in the thread that calls it; yield how many threads PyTorch used before.

    Two threads wait for each other at every operator. With all-MiniLM-L6-v2 in float64 and 49 short texts, two threads
    on two busy cores took 18 to 28 s, one took 4.3 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of threads that begin later, too
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def keeps_nothing(network: nn.Module) -> bool:
    """Return whether a network of a known architecture keeps nothing between calls, so that threads can share it."""
    kinds = (str(getattr(module, "rope_type", "")) for module in network.modules())
    known = family_of(str(getattr(getattr(network, "config", None), "model_type", ""))).supported
    return _SAFE and known and not any(kind in text for text in kinds for kind in _REMEMBERING)
