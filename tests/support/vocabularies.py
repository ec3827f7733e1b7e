"""Vocabularies of about 1,200 tokens, written to the files in which the hub's repositories have them."""

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from support.corpus import training_text

SIZE = 1200
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
XLM_TOKENS = ("<s>", "</s>", "<pad>", "<unk>", *(f"<special{index}>" for index in range(10)))

Vocabulary = dict[str, int]
Writer = Callable[[Path], Vocabulary]
"""Writes the files of a vocabulary into a directory and returns the tokens' ids."""


def wordpiece(specials: tuple[str, ...] = BERT_TOKENS, lowercase: bool = True) -> Tokenizer:
    return Tokenizer.from_str(_trained_wordpiece(specials, lowercase))


@cache
def _trained_wordpiece(specials: tuple[str, ...], lowercase: bool) -> str:
    training = word_tokenizer(models.WordPiece(unk_token="[UNK]"), lowercase)
    inner = {f"##{letter}" for word in _words(training) for letter in word[1:]}
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=[*specials, *sorted(inner)], show_progress=False
    )
    training.train_from_iterator(training_text(), trainer)
    tokenizer = word_tokenizer(models.WordPiece(training.get_vocab(), unk_token="[UNK]"), lowercase)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(specials))
    if "[CLS]" in specials:
        tokenizer.post_processor = with_ends(tokenizer, "[CLS]", "[SEP]")
    return tokenizer.to_str()


def byte_bpe(specials: tuple[str, ...] = ROBERTA_TOKENS, ends: tuple[str, str] | None = ("<s>", "</s>")) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    if ends is not None:
        tokenizer.post_processor = with_ends(tokenizer, *ends)
    return tokenizer


def write_wordpiece(
    directory: Path, specials: tuple[str, ...] = BERT_TOKENS, last: tuple[str, ...] = (), lowercase: bool = True
) -> Vocabulary:
    """Write vocab.txt, its `last` tokens at the end."""
    ids = _extended(wordpiece(specials, lowercase), last)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in ids), "utf-8")
    return ids


def write_byte_bpe(directory: Path, specials: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> Vocabulary:
    """Write vocab.json and merges.txt, the `last` tokens at the end."""
    return _write_bpe(directory, byte_bpe(specials, None), last, ("#version: 0.2",))


def write_word_bpe(directory: Path) -> Vocabulary:
    """Write XLM's vocab.json and merges.txt: characters, the last of a word with `</w>`; merges with their counts."""
    tokenizer = word_tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), lowercase=True)
    last = {f"{word[-1]}</w>" for word in _words(tokenizer)}
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[*XLM_TOKENS, *sorted(last)], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return _write_bpe(directory, tokenizer, (), (), count=" 1")


def write_tokenizer_json(
    directory: Path, specials: tuple[str, ...] = BERT_TOKENS, template: str = "[CLS] $A [SEP]"
) -> Vocabulary:
    """Write a byte-level BPE that is stored in no other form, with tokens for runs of spaces, as ModernBERT has."""
    tokenizer = byte_bpe(specials, None)
    ends = sorted({token for token in template.split() if token != "$A"})
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template,
        pair=f"{template} {template.replace('$A', '$B:1')}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ends],
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(8, 1, -1)])
    if "[MASK]" in specials:
        tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer.get_vocab()


def write_sentencepiece(
    directory: Path,
    file: str,
    first: tuple[str, ...] = (),
    skipped: int = 0,
    last: tuple[str, ...] = (),
    **options: str | int | float | bool,
) -> Vocabulary:
    """Train and write a SentencePiece model.

    transformers gives the first ids to the tokens `first`, in place of the `skipped` first pieces, and the last ids to
    the tokens `last`.
    """
    model = _sentencepiece_model(tuple(sorted(options.items())))
    (directory / file).write_bytes(model)
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    return {token: index for index, token in enumerate((*first, *pieces[skipped:], *last))}


@cache
def _sentencepiece_model(options: tuple[tuple[str, str | int | float | bool], ...]) -> bytes:
    written = io.BytesIO()
    defaults = {"model_type": "unigram", "character_coverage": 1.0}
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=training_text(),
        model_writer=written,
        vocab_size=SIZE,
        num_threads=1,  # with more, sums of floats may come out differently
        minloglevel=2,
        **defaults | dict(options),
    )
    return written.getvalue()


def word_tokenizer(model: models.Model, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _words(tokenizer: Tokenizer) -> set[str]:
    """Words to train on. Trainers number marked letters in the order of a hash map, unless they are special tokens."""
    texts = map(tokenizer.normalizer.normalize_str, training_text())
    return {word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)}


def with_ends(tokenizer: Tokenizer, first: str, last: str) -> processors.TemplateProcessing:
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    pair = f"{first} $A {last} $B:1 {last}:1"
    return processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=ids)


def _extended(tokenizer: Tokenizer, last: tuple[str, ...]) -> Vocabulary:
    """Ids in their order, and after them those of the last tokens."""
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    return {token: index for index, token in enumerate((*tokens, *last))}


def _write_bpe(
    directory: Path, tokenizer: Tokenizer, last: tuple[str, ...], header: tuple[str, ...], count: str = ""
) -> Vocabulary:
    ids = _extended(tokenizer, last)
    pairs = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), "utf-8")
    (directory / "merges.txt").write_text(
        "".join(f"{line}\n" for line in (*header, *(pair + count for pair in pairs))), "utf-8"
    )
    return ids
