"""The parity gate: the bundle as written, opened anew, against the PyTorch reference in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whiten_export.reference import SentenceEncoder
from whiten_runtime.bundle import MODEL_FILE
from whiten_runtime.encoder import Encoder
from whiten_runtime.engine import Engine
from whiten_runtime.errors import ParityError
from whiten_runtime.manifest import Precision
from whiten_runtime.parity import GATES, Agreement, compare
from whiten_runtime.probes import Probes
from whiten_runtime.session import SessionOptions

Advance = Callable[[int], object]


def check_tokens(ours: list[list[int]], theirs: list[list[int]], texts: tuple[str, ...]) -> None:
    """Check that the bundle's tokenizer gives the checkpoint's ids.

    Raises:
        ParityError: it does not; the message has the first text.
    """
    for text, got, want in zip(texts, ours, theirs, strict=True):
        if got != want:
            raise ParityError(
                f"the bundle's tokenizer gives other ids than transformers' for {text[:60]!r}: {got[:12]} instead of "
                f"{want[:12]}; the checkpoint's tokenizer files disagree with one another"
            )


def reference_probes(
    encoder: SentenceEncoder, texts: tuple[str, ...], token_ids: list[list[int]], advance: Advance
) -> Probes:
    """Vectors of the reference for each text alone, without padding, in the precision of `encoder`."""
    finished, unwhitened = [], []
    for ids in token_ids:
        mask = np.ones((1, len(ids)), np.int64)
        vector = _unwhitened(encoder, np.asarray([ids], np.int64), mask)
        unwhitened.append(_array(vector))
        finished.append(_array(encoder.finish(vector)))
        advance(1)
    return Probes(texts, np.concatenate(finished), np.concatenate(unwhitened))


def check_bundle(
    root: Path,
    encoder: SentenceEncoder,
    probes: Probes,
    token_ids: list[list[int]],
    batches: list[dict[str, NDArray[np.int64]]],
    options: SessionOptions,
    advance: Advance,
) -> Agreement:
    """Compare a bundle with the reference: its probes alone and batched, and batches of odd shapes.

    Args:
        root: the bundle.
        encoder: the reference, in float64.
        probes: what the reference gave for the texts.
        token_ids: of the texts.
        batches: padded batches of token ids, as by `token_batches`.
        options: how the bundle's session is created.
        advance: told how many comparisons were finished.

    Returns:
        The agreement over all vectors.

    Raises:
        ParityError: a bound of the gate is not kept.
    """
    with Encoder(root, options.providers, options.threads) as bundle:
        got = [bundle.encode([text]) for text in probes.texts]
        got.append(bundle.encode(probes.texts))
        manifest = bundle.manifest
    want = [probes.embeddings, probes.embeddings]
    engine = Engine(root / MODEL_FILE, manifest.pad_token_id, options)
    for feed in batches:
        got.append(engine.run_batch(feed))
        want.append(_array(encoder.finish(_unwhitened(encoder, feed["input_ids"], feed["attention_mask"]))))
        advance(1)
    engine.close()
    agreement = compare(np.concatenate(got), np.concatenate(want))
    gate = GATES[manifest.precision]
    if not gate.passes(agreement):
        reason = _reason(encoder, probes, token_ids, agreement, manifest.precision)
        raise ParityError(f"{reason}; wanted {gate}; no bundle was written")
    return agreement


def _reason(
    encoder: SentenceEncoder,
    probes: Probes,
    token_ids: list[list[int]],
    agreement: Agreement,
    precision: Precision,
) -> str:
    """Why the gate failed: a wrong graph, or vectors that a precision cannot carry; PyTorch's own float32 tells."""
    if precision != "fp32":
        return (
            f"{precision} costs these vectors too much accuracy: {agreement}; use --precision fp32, a smaller --dim or "
            "other layers"
        )
    own = reference_probes(encoder.float(), probes.texts, token_ids, lambda count: None)
    torch_agreement = compare(own.embeddings, probes.embeddings)
    if GATES["fp32"].passes(torch_agreement):
        family = _config(encoder).model_type
        return f"the exported graph of this {family} network is not what PyTorch computes: {agreement}"
    layers = ", ".join(map(str, encoder.layers))
    return (
        f"layers {layers} with {encoder.pooling} pooling cannot be whitened in float32: texts differ so "
        "little there that whitening magnifies rounding; use mean pooling, other layers or a smaller --dim. "
        f"PyTorch's own float32 is as far from float64 ({torch_agreement}) as the graph ({agreement})"
    )


def _unwhitened(encoder: SentenceEncoder, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> torch.Tensor:
    device = next(encoder.parameters()).device
    with torch.no_grad():
        return encoder.unwhitened(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))


def _array(vectors: torch.Tensor) -> NDArray[np.float64]:
    return vectors.double().cpu().numpy()


def _config(encoder: SentenceEncoder) -> Any:
    return encoder.network.config
