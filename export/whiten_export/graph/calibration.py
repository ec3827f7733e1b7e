"""Measure the largest magnitudes of a graph's activations over real sentences, channel by channel."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.files import save_with_outputs
from whiten_export.graph.int8 import activations
from whiten_runtime.inference.batching import pad_batch, plan_batches
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions, create_session

CALIBRATION_SENTENCES = 192


def channel_magnitudes(
    model: ir.Model,
    sentences: Iterable[str],
    tokenizer: Tokenizer,
    pad_token_id: int,
    options: SessionOptions,
    path: Path,
) -> dict[str, NDArray[np.float32]]:
    """Run sentences through the graph, and return the largest |x| of every channel of every activation.

    Args:
        model: graph in float32.
        sentences: real sentences; long ones are truncated.
        tokenizer: tokenizer of the model.
        pad_token_id: id of the padding token; padding is ignored.
        options: options with which the session is created.
        path: path to write the graph to, beside its weights.

    Returns:
        float32 [channels] by the name of the value.
    """
    values = activations(model)
    if not values:
        return {}
    save_with_outputs(model, values, path)
    session = create_session(path, options)
    ids = [tokenizer.cut(row) for row in tokenizer.tokenize(list(sentences))]
    largest: dict[str, NDArray[np.float32]] = {}
    for group in plan_batches([len(row) for row in ids]):
        feed = pad_batch([ids[index] for index in group], pad_token_id)
        real = feed["attention_mask"].astype(bool)
        for value, array in zip(values, session.run(None, feed), strict=True):
            in_tokens = array.ndim > 2 and array.shape[:2] == real.shape
            channels = np.abs(array[real] if in_tokens else array.reshape(-1, array.shape[-1]))
            name = str(value.name)
            largest[name] = np.maximum(largest.get(name, 0), channels.max(axis=0))
    return largest
