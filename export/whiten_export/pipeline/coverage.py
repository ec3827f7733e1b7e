"""Report how many words of a corpus have a vector, before a whitening of word vectors is fitted on it."""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from tokenizers import Tokenizer

from whiten_runtime.checks import encodable
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.reporter import Reporter

_SENTENCES = 20_000
"""Number of sentences whose words are counted, the first ones. They take about a second."""

_LEAST = 80.0
"""Percentage of words with a vector below which there is a warning.

Rather few words of the right language reach it: in Python's documentation, the 1,000 most frequent words of one half
make up 83 % of the other half's, the 2,000 most frequent ones 90 %.
"""


def report_coverage(
    model_type: str, tokenizer: str, corpus: Corpus, report: Reporter, sentences: int = _SENTENCES
) -> None:
    """Report the percentage of a corpus's words that have a vector; report nothing if the model is not word vectors.

    Args:
        model_type: architecture of the model, "words" for word vectors.
        tokenizer: content of the model's `tokenizer.json`.
        corpus: sentences that the whitening will be fitted on.
        report: receives the percentage, as a warning if it is small.
        sentences: number of sentences whose words are counted, the first ones.
    """
    if model_type != "words":
        return
    texts = iter(corpus)
    known, total = _count(Tokenizer.from_str(tokenizer), islice(texts, sentences))
    if not total:
        return
    percent = math.floor(1000 * known / total) / 10  # 100.0 only if every word has a vector
    counted = f"the corpus's {total:,} words"
    if next(texts, None) is not None:
        counted = f"the {total:,} words of the corpus's first {sentences:,} sentences"
    found = f"{percent:.1f} % of {counted} have a vector"
    if percent >= _LEAST:
        report.stage(found)
        return
    report.warn(
        f"only {found}; wanted {_LEAST:.0f} % or more: give a corpus in the language and casing of the word vectors, "
        "or keep more of them where --max-words was given"
    )


def _count(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[int, int]:
    """Return how many words of the texts have a vector, and how many there are. A word has a letter in it.

    Punctuation and numbers do not count: some files have vectors of none, which says nothing about language and casing.
    """
    words: Counter[str] = Counter()
    for text in texts:
        parts = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(encodable(text)))
        words.update(part for part, _ in parts)
    counts = {word: count for word, count in words.items() if any(map(str.isalpha, word))}
    known = sum(count for word, count in counts.items() if tokenizer.token_to_id(word) is not None)
    return known, sum(counts.values())
