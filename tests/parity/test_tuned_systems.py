"""Test that the papers' tuned systems come out as their authors' own tools compute them, on random weights.

What each tool does was read in its repository, and is written down here in a few lines of PyTorch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from support.checkpoints import save_checkpoint
from support.cli import ok
from whiten import Encoder
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = pytest.mark.slow

TEXTS = ["A man is playing a guitar.", "Someone plays an instrument.", "a", "Interest rates fell. " * 30]

PROMPT = 'Summarize sentence "{text}" in one word:"'
"""AnglE's Prompts.A."""


def run_network(
    folder: Path, texts: list[str], max_length: int, head: str = "AutoModel"
) -> list[tuple[Any, torch.Tensor]]:
    """Return the output of the network, and the mask, for each text alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = getattr(transformers, head).from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.no_grad():
            found.append((network(**inputs, output_hidden_states=True), inputs["attention_mask"]))
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows(vectors: list[torch.Tensor]) -> np.ndarray:
    return torch.cat(vectors).numpy().astype(np.float64)


@pytest.fixture
def exported(snapshot: Callable[[str], Path]) -> Callable[..., tuple[Path, Encoder]]:
    """Return a function that makes the folder of a name and exports it by that name."""

    def get(name: str) -> tuple[Path, Encoder]:
        folder = save_checkpoint("llama" if name == "angle-llama" else "bert", snapshot(name))
        ok("export", name, "--out", "bundle")
        return folder, Encoder("bundle")

    return get


def mean_and_first(output: Any, mask: torch.Tensor) -> torch.Tensor:
    states = output.last_hidden_state
    return (states[:, 0] + (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)) / 2


@pytest.mark.parametrize(
    ("name", "vector", "finish"),
    [
        ("simcse", lambda output, mask: output.pooler_output, unit),
        ("unsup-simcse", lambda output, mask: output.last_hidden_state[:, 0], unit),
        ("angle-bert", mean_and_first, np.asarray),
        ("angle-llama", lambda output, mask: output.hidden_states[-1][:, -1], np.asarray),
        ("specter", lambda output, mask: output.last_hidden_state[:, 0], np.asarray),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_bundle_gives_the_vectors_of_the_authors_tool(
    exported: Callable[..., tuple[Path, Encoder]], name: str, vector: Callable[..., torch.Tensor], finish: Any
) -> None:
    folder, encoder = exported(name)
    texts = TEXTS
    if name == "angle-llama":
        texts = [PROMPT.format(text=text) for text in TEXTS]
        assert encoder.prompts == {"A": PROMPT}
        np.testing.assert_array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS))
    outputs = run_network(folder, texts, encoder.max_seq_length)
    agreement = compare(encoder.encode(TEXTS), finish(rows([vector(*found) for found in outputs])))
    assert GATES["fp32"].passes(agreement), agreement


def test_dialogrpt_scores_the_last_state(snapshot: Callable[[str], Path]) -> None:
    """Its tool gives no vector, but a score: a product with the state of the last token."""
    folder = save_checkpoint("gpt2", snapshot("dialogrpt"), n_layer=1)
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=1)
    torch.manual_seed(0)
    scorer = transformers.AutoModelForSequenceClassification.from_config(config)
    scorer.transformer.load_state_dict(transformers.AutoModel.from_pretrained(folder).state_dict())
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    scorer.save_pretrained(folder)
    options = ("--layers", "-1", "--pooling", "last", "--whitening", "none")
    ok("export", "dialogrpt", *options, "--out", "bundle")
    with Encoder("bundle") as encoder:
        outputs = run_network(folder, TEXTS, encoder.max_seq_length, "AutoModelForSequenceClassification")
        weights = scorer.score.weight.detach().numpy().astype(np.float64)
        scores = encoder.encode(TEXTS) @ weights.T
    np.testing.assert_allclose(scores, rows([output.logits for output, _ in outputs]), rtol=1e-4, atol=1e-4)
