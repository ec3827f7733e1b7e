"""Check the arguments of `Encoder.encode` that sentence-transformers has and an encoder of one graph needs not."""

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from msgspec import UnsetType
from numpy.typing import ArrayLike

from whiten_runtime.checks import one_of, whole_number
from whiten_runtime.errors import UsageError

Texts = str | Iterable[str]

SENTENCE_EMBEDDING: Literal["sentence_embedding"] = "sentence_embedding"


class EncodeArguments(TypedDict, total=False):
    """Lists the arguments of `Encoder.encode` that do not change the type of its result, for type checkers."""

    sentences: Texts
    inputs: Texts
    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | None
    output_value: Literal["sentence_embedding"]
    device: object
    normalize_embeddings: bool
    truncate_dim: int | None
    truncate: bool
    max_characters: int | None
    ranges: ArrayLike | None
    pool: None
    chunk_size: int | None


def given_texts(texts: Texts | UnsetType, sentences: Texts | UnsetType, inputs: Texts | UnsetType) -> Texts:
    """Return the texts of a call, by whichever of their three names they were given."""
    named = {"texts": texts, "sentences": sentences, "inputs": inputs}
    given = {name: value for name, value in named.items() if not isinstance(value, UnsetType)}
    if not given:
        raise UsageError("there are no texts; give a str or an iterable of str as texts, sentences or inputs")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} were both given, but are names of the same argument; leave one out")
    return next(iter(given.values()))


def check_arguments(output_value: object, device: object, own_device: str, pool: object, chunk_size: Any) -> None:
    """Check arguments by which sentence-transformers chooses other outputs, devices and processes."""
    if output_value in ("token_embeddings", None):
        raise UsageError(
            f"output_value is {output_value!r}, but the graph of a bundle gives finished vectors alone, none of tokens"
            f"; use '{SENTENCE_EMBEDDING}'"
        )
    one_of("output_value", output_value, [SENTENCE_EMBEDDING])
    if device is not None and str(device) not in (own_device, own_device.removesuffix(":0")):
        raise UsageError(
            f"device is {str(device)!r}, but this encoder is on {own_device!r}, as chosen when it was opened; leave it "
            "out, or open another with Encoder(path, device=...)"
        )
    if pool is not None:
        raise UsageError(
            "pool was given, but an encoder uses all processors by itself; leave it out, or pass the encoder to "
            "processes of your own, since it can be pickled"
        )
    if chunk_size is not None:
        whole_number("chunk_size", chunk_size, 1)
