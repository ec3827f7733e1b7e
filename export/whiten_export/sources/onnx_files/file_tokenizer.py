"""Read the tokenizer of a directory, without transformers if possible."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from whiten_export.sources.base import UNSET_LENGTH, SourceTokenizer
from whiten_export.sources.casing import lower_case
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import Side
from whiten_runtime.errors import WhitenError


def file_tokenizer(checkpoint: Checkpoint, described: Mapping[str, Any]) -> SourceTokenizer:
    """Read `tokenizer.json`; `own_ids` uses transformers' tokenizer where it is installed, to check this against."""
    path = checkpoint.directory / TOKENIZER_FILE
    if not path.is_file():
        return _by_transformers(checkpoint)
    specials = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in described.items()
        if name.endswith("_token") and isinstance(token, (str, dict))
    }
    backend = Tokenizer.from_file(str(path))
    if checkpoint.published is not None and checkpoint.published.do_lower_case:
        lower_case(backend)
    text = backend.to_str()
    side: Side = "left" if described.get("truncation_side") == "left" else "right"
    numbers = (backend.token_to_id(specials[name]) for name in ("pad_token", "eos_token") if name in specials)
    pad = next((number for number in numbers if number is not None), 0)
    specials["pad_token"] = backend.id_to_token(pad)
    stated = described.get("model_max_length")
    length = int(stated) if isinstance(stated, int | float) and stated < UNSET_LENGTH else None

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        own = Tokenizer.from_str(text)
        own.no_padding()
        own.enable_truncation(max_length, direction=side)
        return [encoding.ids for encoding in own.encode_batch(list(texts))]

    try:
        judge = _by_transformers(checkpoint).own_ids
    except WhitenError:  # transformers is not installed, or does not know the architecture
        judge = own_ids
    return SourceTokenizer(text, judge, pad, specials, length, truncation_side=side)


def _by_transformers(checkpoint: Checkpoint) -> SourceTokenizer:
    try:
        from whiten_export.sources.networks.hugging_face import load_tokenizer
        from whiten_export.sources.networks.transformers_tokenizer import describe_tokenizer
    except ImportError as error:
        raise WhitenError(
            f"'{checkpoint.model}' has no {TOKENIZER_FILE}, and making one needs {error.name}; install it with "
            "pip install 'whiten[export]'"
        ) from error
    return describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code=False))
