"""V. Vectors: what a bundle gives equals what the authors' program computes, at every length."""

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.cli import ok
from support.letters import PAD_SECOND, letter_texts, save_letters
from whiten import Encoder

# V2, lengths: a vector equals the network's own computation at every length from 1 token to the longest.

CHARACTERS = string.ascii_lowercase + string.digits + "".join(map(chr, range(0x4E00, 0x4E00 + 63)))
"""The vocabulary of a network over characters: fewer than its texts have."""

COUNTED = {  # architectures that count the tokens that are not the padding id
    "roberta": {"type_vocab_size": 1},
    "xlm-roberta": {"type_vocab_size": 1},
    "esm": {"position_embedding_type": "absolute", "mask_token_id": None},
}


def published_vectors(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors of sentence-transformers, which gets one text at a time."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.stack([model.encode(text, show_progress_bar=False) for text in texts])


def errors(vectors: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each vector is from the one that is wanted, over its norm."""
    return np.asarray(np.linalg.norm(vectors - wanted, axis=1) / np.linalg.norm(wanted, axis=1), np.float64)


def spread(longest: int) -> list[int]:
    """Return lengths from the shortest to the longest, and beyond."""
    return [*range(3, 12), *range(20, longest, 13), *range(longest - 3, longest + 4)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("kind", "length"),
    [*(("xlm-roberta", length) for length in (128, 336, 347, 352, 367)), ("roberta", 336), ("esm", 128), ("esm", 352)],
)
def test_v2_a_vocabulary_smaller_than_the_length_has_right_positions_at_each_length(
    kind: str, length: int, precision: str, tmp_path: Path
) -> None:
    folder = save_letters(
        kind,
        tmp_path / "model",
        length + 2,
        letters=CHARACTERS,
        specials=PAD_SECOND,
        tokenizer_length=length,
        **COUNTED[kind],
    )
    ok("export", folder, "--precision", precision, "--out", tmp_path / "bundle")
    texts = letter_texts([number for number in spread(length) if number <= length], CHARACTERS)
    wanted = published_vectors(folder, texts)
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.max_seq_length == length
        alone = np.concatenate([encoder.encode([text]) for text in texts])
        batch = encoder.encode(texts)
    bound = 1e-5 if precision == "fp32" else 0.05
    assert max(errors(alone, wanted).max(), errors(batch, wanted).max()) < bound
