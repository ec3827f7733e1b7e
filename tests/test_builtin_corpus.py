"""Test that the script of the built-in corpus makes what is shipped."""

from benchmarks.builtin_corpus.grammar import generate
from benchmarks.builtin_corpus.kinds import KINDS
from benchmarks.builtin_corpus.make import DOCSTRINGS, EXAMPLES, SEED, SHARES, compress, corpus_lines
from whiten_runtime.files.corpus import builtin_sentences


def test_the_grammar_gives_the_shipped_sentences() -> None:
    counts = {kind: count for kind, count in SHARES.items() if kind in KINDS}
    shipped = {pair for pair in builtin_sentences() if pair[0] in KINDS}
    assert set(generate(SEED, counts)) == shipped
    assert set(KINDS) | {DOCSTRINGS, EXAMPLES} == set(SHARES)


def test_the_same_sources_give_the_same_file() -> None:
    given = [
        [sentence for kind, sentence in builtin_sentences() if kind == wanted] for wanted in (DOCSTRINGS, EXAMPLES)
    ]
    lines = corpus_lines(*given)
    assert lines == [f"{kind}\t{sentence}" for kind, sentence in builtin_sentences()]
    assert compress(lines) == compress(iter(lines))


def test_sentences_of_the_grammar_are_whole() -> None:
    for kind, sentence in generate(7, dict.fromkeys(KINDS, 40)):
        assert "{" not in sentence
        assert " a a" not in sentence.replace(" a an", ""), (kind, sentence)
        assert kind == "chat" or sentence[0].isupper() or not sentence[0].isalpha()
