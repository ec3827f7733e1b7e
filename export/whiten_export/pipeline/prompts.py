"""Look for prompts that leave no room for a text."""

from whiten_export.pipeline.tools import Tools
from whiten_export.proof.probe_texts import probe_texts
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import pooling_modes
from whiten_runtime.errors import UsageError
from whiten_runtime.inference.options import with_prompt

_UNDEFINED = frozenset({"cls", "max"})
"""Poolings that have no vector of no tokens: sentence-transformers takes those of the prompt, or minus infinity."""


def check_prompts(manifest: Manifest, tools: Tools) -> None:
    """Warn of prompts after which nothing of a text is left, so that all texts get one vector.

    Raises:
        UsageError: the pooling leaves the prompt out, and has no vector of what is left.
    """
    tokenizer = tools.tokenizer
    assert manifest.pooling is not None
    for name, prompt in manifest.prompts.items():
        rows = {tuple(tokenizer.cut(row)) for row in tokenizer.tokenize(with_prompt(prompt, probe_texts(1)))}
        if len(rows) > 1:
            continue
        fills = (
            f"prompt '{name}' has {len(tokenizer.tokenize([prompt])[0])} tokens, a text may have "
            f"{manifest.max_seq_length}: nothing of a text would be left"
        )
        if not manifest.include_prompt and (undefined := _UNDEFINED.intersection(pooling_modes(manifest.pooling))):
            raise UsageError(
                f"{fills}, and pooling {min(undefined)} has no vector of no tokens; pass a --max-length that fits, or "
                "take the prompt out of config_sentence_transformers.json"
            )
        tools.report.warn(f"{fills}, so all texts get the same vector with it")
