"""Convert the graph of an export to a lower precision."""

from itertools import islice
from pathlib import Path

import onnx_ir as ir

from whiten_export.graph.float16 import halve_network, halve_weights
from whiten_export.graph.int8.convert import Vocabulary, calibration_texts, convert_to_int8, far_texts
from whiten_export.pipeline.plan import Plan
from whiten_export.proof.probe_texts import LONGEST_PROBE
from whiten_runtime.bundle.records import QuantizationRecord
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

CALIBRATION_SENTENCES = 192
"""Number of sentences on which ranges are measured."""


def lower_precision(
    plan: Plan, graph: ir.Model, tokenizer: Tokenizer, folder: Path, options: SessionOptions, report: Reporter
) -> tuple[ir.Model, QuantizationRecord | None]:
    """Return the graph in the precision of the recipe, and the record of its scales if that is int8."""
    if plan.recipe.graph.precision == "fp16":
        (halve_network if plan.recipe.graph.target == "cuda" else halve_weights)(graph)
        return graph, None
    corpus = plan.corpus or Corpus((BUILTIN_CORPUS,), None, None)
    step = max(1, (plan.sentences or corpus.count()) // CALIBRATION_SENTENCES)
    sentences = with_prompt(plan.prompts.resolve(), list(islice(corpus, 0, step * CALIBRATION_SENTENCES, step)))
    vocabulary = Vocabulary.of(tokenizer, plan.model.vocab_size, min(plan.max_seq_length, LONGEST_PROBE))
    texts = calibration_texts(graph, tokenizer, sentences, vocabulary, plan.model.tokenizer.pad_token_id)
    far = far_texts(tokenizer, vocabulary)
    model, record = convert_to_int8(graph, texts, far, plan.max_seq_length, folder, options, report)
    if max(plan.layers) > 0 and not record.constant_scales + record.token_scales:
        report.warn(
            "no matrix product of this network can be computed in int8 (its layers may be convolutions), so it is no "
            "faster than fp32; only its embeddings are smaller"
        )
    return model, record
