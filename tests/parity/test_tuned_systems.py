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
from support.cli import invoke
from whiten import Encoder
from whiten_export.commands.export import export
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

    def get(name: str, *options: str) -> tuple[Path, Encoder]:
        folder = save_checkpoint("llama" if name == "angle-llama" else "bert", snapshot(name))
        result = invoke(export, name, *options, "--out", "bundle")
        assert result.exit_code == 0, result.stderr
        return folder, Encoder("bundle")

    return get


def check(encoder: Encoder, want: np.ndarray) -> None:
    agreement = compare(encoder.encode(TEXTS), want)
    assert GATES["fp32"].passes(agreement), agreement


def test_supervised_simcse_is_the_pooler_normalised(exported: Callable[..., tuple[Path, Encoder]]) -> None:
    folder, encoder = exported("simcse")
    outputs = run_network(folder, TEXTS, encoder.max_seq_length)
    check(encoder, unit(rows([output.pooler_output for output, _ in outputs])))


def test_unsupervised_simcse_is_the_first_state_normalised(exported: Callable[..., tuple[Path, Encoder]]) -> None:
    folder, encoder = exported("unsup-simcse")
    outputs = run_network(folder, TEXTS, encoder.max_seq_length)
    check(encoder, unit(rows([output.last_hidden_state[:, 0] for output, _ in outputs])))


def test_angle_bert_is_the_mean_of_first_state_and_mean(exported: Callable[..., tuple[Path, Encoder]]) -> None:
    folder, encoder = exported("angle-bert")
    outputs = run_network(folder, TEXTS, encoder.max_seq_length)
    vectors = []
    for output, mask in outputs:
        states = output.last_hidden_state
        vectors.append((states[:, 0] + (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)) / 2)
    check(encoder, rows(vectors))


def test_angle_llama_is_the_last_state_of_a_text_in_its_prompt(exported: Callable[..., tuple[Path, Encoder]]) -> None:
    folder, encoder = exported("angle-llama")
    assert encoder.prompts == {"A": PROMPT}
    texts = [PROMPT.format(text=text) for text in TEXTS]
    outputs = run_network(folder, texts, encoder.max_seq_length)
    check(encoder, rows([output.hidden_states[-1][:, -1] for output, _ in outputs]))
    np.testing.assert_array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS))


def test_specter_is_the_first_state(exported: Callable[..., tuple[Path, Encoder]]) -> None:
    folder, encoder = exported("specter")
    outputs = run_network(folder, TEXTS, encoder.max_seq_length)
    check(encoder, rows([output.last_hidden_state[:, 0] for output, _ in outputs]))


def test_dialogrpt_scores_the_last_state(snapshot: Callable[[str], Path]) -> None:
    """Its tool gives no vector, but a score: a product with the state of the last token."""
    folder = save_checkpoint("gpt2", snapshot("dialogrpt"))
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=1)
    torch.manual_seed(0)
    scorer = transformers.AutoModelForSequenceClassification.from_config(config)
    scorer.transformer.load_state_dict(transformers.AutoModel.from_pretrained(folder).state_dict())
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    scorer.save_pretrained(folder)
    options = ("--layers", "-1", "--pooling", "last", "--whitening", "none")
    assert invoke(export, "dialogrpt", *options, "--out", "bundle").exit_code == 0
    with Encoder("bundle") as encoder:
        outputs = run_network(folder, TEXTS, encoder.max_seq_length, "AutoModelForSequenceClassification")
        weights = scorer.score.weight.detach().numpy().astype(np.float64)
        scores = encoder.encode(TEXTS) @ weights.T
    np.testing.assert_allclose(scores, rows([output.logits for output, _ in outputs]), rtol=1e-4, atol=1e-4)
