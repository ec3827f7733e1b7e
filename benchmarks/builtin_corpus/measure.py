"""Measure what whitenings that are fitted on the built-in corpus give on similarity tasks, by layers."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from whiten_evaluation.tasks.sts_files import StsData, read_sts
from whiten_runtime.files.builtin import builtin_sentences
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.selection import choose_by_rules
from whiten_whitening.similarity import cosines, spearman

_BATCH, _MAX_LENGTH = 64, 128

SPECS: Mapping[str, WhiteningSpec | None] = {
    "none": None,
    "centre": WhiteningSpec(beta=0.0),
    "soft": WhiteningSpec(shrinkage=0.5),
    "full": WhiteningSpec(),
}


def measure(model: str, folder: Path, tuned: bool) -> str:
    """Return a table of the mean score of all tasks, by layers and whitening, and the scores of single layers by task.

    Args:
        model: folder or hub id of the checkpoint; its tokenizer cuts texts to 128 tokens.
        folder: folder of the similarity tasks.
        tuned: whether the checkpoint was fine-tuned for sentence similarity.
    """
    data = read_sts(folder)
    corpus = [sentence for _, sentence in builtin_sentences()]
    texts = list(dict.fromkeys([*corpus, *data.texts]))
    places = {text: row for row, text in enumerate(texts)}
    vectors = _pooled(model, texts)
    top = len(vectors) - 1
    fitted = np.array([places[sentence] for sentence in corpus])
    lines = ["| layers | none | centre | soft | full | auto | auto is |", "|---|---|---|---|---|---|---|"]
    worst = np.inf
    for layers in _combinations(top):
        mean = np.asarray(np.mean([vectors[layer] for layer in layers], axis=0, dtype=np.float64))
        moments = Moments.of(mean[fitted])
        scores = {name: _score(data, places, mean, moments, spec) for name, spec in SPECS.items()}
        spec = None if tuned and layers[-1] == top else choose_by_rules(moments, None).spec
        auto = next((name for name, other in SPECS.items() if other == spec), None)
        assert auto is not None, spec
        worst = min(worst, scores[auto] - scores["none"])
        cells = [f"{scores[name]:.2f}" for name in SPECS]
        lines.append(f"| {','.join(map(str, layers))} | {' | '.join(cells)} | {scores[auto]:.2f} | {auto} |")
    names = ", ".join(task.name for task in data.tasks)
    return f"Mean over {names}. auto is at worst {worst:+.2f} from none.\n\n" + "\n".join(lines) + "\n"


def _combinations(top: int) -> Iterator[tuple[int, ...]]:
    yield from ((layer,) for layer in range(top + 1))
    yield from combinations(range(top + 1), 2)


def _score(
    data: StsData, places: Mapping[str, int], mean: Float64Array, moments: Moments, spec: WhiteningSpec | None
) -> float:
    if spec is not None:
        fitted = fit_map(moments, spec)
        mean = (mean - fitted.mean) @ fitted.weight
    tasks = []
    for task in data.tasks:
        found = []
        for subset in task.subsets:
            first, second = (mean[[places[text] for text in part]] for part in (subset.first, subset.second))
            found.append(100 * spearman(cosines(first, second), np.asarray(subset.scores)))
        tasks.append(np.mean(found))
    return float(np.mean(tasks))


def _pooled(model: str, texts: list[str]) -> NDArray[np.float32]:
    """Return the mean over tokens of every hidden state, [layers, n, d]."""
    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    found: NDArray[np.float32] | None = None
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = tokenizer(
            [texts[row] for row in rows], padding=True, truncation=True, max_length=_MAX_LENGTH, return_tensors="pt"
        )
        with torch.inference_mode():
            states = network(**batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"][..., None].float()
        if found is None:
            found = np.zeros((len(states), len(texts), states[0].shape[-1]), np.float32)
        for layer, state in enumerate(states):
            found[layer, rows] = ((state * mask).sum(1) / mask.sum(1)).numpy()
    assert found is not None
    return found
