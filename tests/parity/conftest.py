"""Compare exports of folders with the models that sentence-transformers opens."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import ok
from support.published import peer
from whiten import Encoder
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.inference.options import TASK_PROMPTS


@pytest.fixture(scope="session")
def check_published() -> Callable[..., None]:
    """Return a function that compares vectors with those of the model that sentence-transformers opened."""
    return check


@pytest.fixture(scope="session")
def check_export() -> Callable[[Path, Path, Sequence[str]], None]:
    """Return a function that exports a folder as published, and compares its vectors with sentence-transformers'."""

    def exported(folder: Path, bundle: Path, texts: Sequence[str]) -> None:
        ok("export", folder, "--out", bundle)
        with Encoder(bundle) as encoder:
            assert encoder.manifest.published is not None
            assert GATES["fp32"].passes(encoder.verify())
            check(encoder, peer(folder), texts)

    return exported


def check(encoder: Encoder, model: Any, texts: Sequence[str], **task: str) -> None:
    """Compare vectors without a prompt, with each prompt by its name, of queries, and of one text and several."""
    plain = model.encode(texts, batch_size=1, **task)
    got = encoder.encode(texts)
    agreement = compare(got, plain)
    assert GATES["fp32"].passes(agreement), agreement
    assert GATES["fp32"].passes(compare(np.stack([encoder.encode(text) for text in texts]), plain))
    padded = model.encode(texts, batch_size=len(texts), **task)  # on the side that the checkpoint says
    assert GATES["fp32"].passes(compare(got, padded))
    assert encoder.prompts.items() >= {key: text for key, text in model.prompts.items() if text}.items()
    for key in encoder.prompts:
        if key in model.prompts:
            want = model.encode(texts, prompt_name=key, batch_size=1, **task)
            assert GATES["fp32"].passes(compare(encoder.encode(texts, prompt_name=key), want)), key
    if not task:
        want = model.encode_query(texts, batch_size=1)
        assert GATES["fp32"].passes(compare(encoder.encode_query(texts), want))
        document = next((key for key in TASK_PROMPTS["document"] if key in encoder.prompts), None)
        want = model.encode(texts, prompt=encoder.prompts.get(document or "", ""), batch_size=1)
        assert GATES["fp32"].passes(compare(encoder.encode_document(texts), want))
    scores = model.similarity(plain, plain).numpy()
    np.testing.assert_allclose(encoder.similarity(got, got), scores, rtol=1e-3, atol=1e-3 * np.abs(scores).max())
