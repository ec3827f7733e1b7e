"""Tell whether a model's vocabulary covers more than languages in Latin script."""

from tokenizers import Tokenizer

_LAST_LATIN = "\u024f"
"""Last letter of the block Latin Extended-B."""

_SHARE = 0.15
"""Share of the vocabulary in other scripts from which a model is taken as multilingual: bert-base-uncased has 0.05."""

_SAMPLE = 8000
"""Number of tokens that are looked at, spread over the vocabulary."""


def is_multilingual(tokenizer_json: str) -> bool:
    """Return whether many tokens of a vocabulary have letters of other scripts than Latin."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    size = tokenizer.get_vocab_size()
    ids = range(0, size, max(1, size // _SAMPLE))
    other = sum(_is_other(tokenizer.decode([token], skip_special_tokens=False)) for token in ids)
    return bool(ids) and other / len(ids) >= _SHARE


def _is_other(text: str) -> bool:
    return any(letter.isalpha() and letter > _LAST_LATIN for letter in text)
