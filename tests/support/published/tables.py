"""Tokenizers of static models, which have nothing but tokenizer.json."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer

from support.published import tokenizer_files, tokenizer_json
from support.vocabularies import BERT_TOKENS, wordpiece

_FIRST, *_REST = BERT_TOKENS
_UNUSED = tuple(f"[unused{index}]" for index in range(1, 20))


def words() -> Tokenizer:
    """Return BERT's, with the ids that its vocabulary keeps free after the first."""
    return wordpiece((_FIRST, *_UNUSED, *_REST))


def unigram() -> Tokenizer:
    """Return XLM-R's."""
    with TemporaryDirectory() as made:
        directory = Path(made)
        tokenizer_files.xlm_roberta().vocabulary(directory)
        return tokenizer_json.xlm_roberta(directory, words=True)


def truncated() -> Tokenizer:
    """Return BERT's that cuts texts itself."""
    tokenizer = words()
    tokenizer.enable_truncation(12)
    return tokenizer
