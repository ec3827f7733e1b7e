"""Test that a reference whose texts are computed side by side gives what it gives one after the other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, BertConfig, BertModel, LlamaConfig, LlamaModel

from support.checkpoints import rotary
from whiten_export.proof.gate import Case, Definition, compute_expected
from whiten_export.proof.probe_texts import token_batches
from whiten_export.proof.reference import Composition
from whiten_export.sources.pytorch import TorchReference, keeps_nothing
from whiten_runtime.reporter import Reporter

TEXTS = tuple("abcdefgh")
IDS = [[5 + n for n in range(length)] for length in (3, 9, 1, 0, 7, 3, 12, 2)]
PROBES = Case(IDS, texts=TEXTS)
BATCHES = [*map(Case, token_batches(16, 90, 0))]


def test_a_network_gives_the_same_bytes_in_one_thread_and_in_several(checkpoint: Callable[..., Path]) -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            network = AutoModel.from_pretrained(checkpoint("bert"), dtype=torch.float32, attn_implementation="eager")
            network.eval()(torch.tensor([[5, 6]]), output_hidden_states=True)
            assert keeps_nothing(network)
            reference = TorchReference(network, (1,), "mean", known_code=True)
            definition = Definition(reference, Composition((1,)), network.config.hidden_size)
            vectors = compute_expected(definition, [PROBES, *BATCHES], Reporter())
            found.append([case.expected for case in vectors.cases])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_networks_that_keep_something_are_not_shared_by_threads() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    network = LlamaModel(LlamaConfig(vocab_size=20, num_key_value_heads=2, **sizes))
    assert keeps_nothing(network)
    network.config.update(rotary(rope_type="dynamic", factor=2.0, rope_theta=10000.0))
    assert not keeps_nothing(network)
    unknown = BertModel(BertConfig(vocab_size=20, **sizes))
    unknown.config.model_type = "unheard-of"
    assert not keeps_nothing(unknown)
