"""What is in tokenizer.json, made of a vocabulary's own files."""

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from support.vocabularies import BERT_TOKENS, with_ends, word_tokenizer

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
EXTRA_IDS = tuple(f"<extra_id_{index}>" for index in reversed(range(100)))
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def wordpiece(
    directory: Path,
    lowercase: bool = True,
    specials: tuple[str, ...] = BERT_TOKENS,
    ends: tuple[str, str] = ("[CLS]", "[SEP]"),
) -> Tokenizer:
    words = (directory / "vocab.txt").read_text("utf-8").split("\n")[:-1]
    model = models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = word_tokenizer(model, lowercase)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.post_processor = with_ends(tokenizer, *ends)
    return tokenizer


def xlm_roberta(directory: Path, words: bool) -> Tokenizer:
    model = _sentencepiece(directory / "sentencepiece.bpe.model")
    pieces = [(piece.piece, piece.score) for piece in model.pieces[3:]]
    first = [(token, 0.0) for token in FAIRSEQ_TOKENS]
    tokenizer = Tokenizer(models.Unigram([*first, *pieces, ("<mask>", 0.0)], unk_id=3))
    _like_sentencepiece(tokenizer, model, words)
    tokenizer.add_special_tokens([*FAIRSEQ_TOKENS, AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = _template(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return tokenizer


def t5(directory: Path) -> Tokenizer:
    model = _sentencepiece(directory / "spiece.model")
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((token, 0.0) for token in EXTRA_IDS)], unk_id=2))
    _like_sentencepiece(tokenizer, model, words=True)
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *EXTRA_IDS])
    tokenizer.post_processor = _template(tokenizer, "$A </s>", "$A </s> $B </s>")
    return tokenizer


def _like_sentencepiece(tokenizer: Tokenizer, model: "ModelProto", words: bool) -> None:
    normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    spaces = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    if words:
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    else:
        joined = (normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁"))
        tokenizer.normalizer = normalizers.Sequence([normalizer, *joined])
        tokenizer.pre_tokenizer = spaces


def llama(directory: Path, eos: bool) -> Tokenizer:
    tokenizer = _merging(_sentencepiece(directory / "tokenizer.model"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    back = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(list(back))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    single = "<s> $A </s>" if eos else "<s> $A"
    tokenizer.post_processor = _template(tokenizer, single, f"{single} {single.replace('$A', '$B')}")
    return tokenizer


def gemma(directory: Path) -> Tokenizer:
    tokenizer = _merging(_sentencepiece(directory / "tokenizer.model"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    tokenizer.post_processor = _template(tokenizer, "<bos> $A <eos>", "<bos> $A <eos> <bos> $B <eos>")
    return tokenizer


def _merging(model: "ModelProto") -> Tokenizer:
    """Return BPE with the merges of a SentencePiece model, which stores only what comes out of each."""
    ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
    halves = ((piece[:cut], piece[cut:]) for piece in ids for cut in range(1, len(piece)))
    merges = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
    return Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


def qwen(directory: Path, eos: bool) -> Tokenizer:
    bytes_only = {"add_prefix_space": False, "use_regex": False}
    tokenizer = Tokenizer(models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"), pre_tokenizers.ByteLevel(**bytes_only)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    bytewise = processors.ByteLevel(trim_offsets=False, **bytes_only)
    end = _template(tokenizer, "$A <|endoftext|>", "$A <|endoftext|> $B <|endoftext|>")
    tokenizer.post_processor = processors.Sequence([bytewise, end]) if eos else bytewise
    return tokenizer


def _template(tokenizer: Tokenizer, single: str, pair: str) -> processors.TemplateProcessing:
    specials = {token for token in pair.split() if not token.startswith("$")}
    ids = [(token, tokenizer.token_to_id(token)) for token in sorted(specials)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _sentencepiece(file: Path) -> "ModelProto":
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    return ModelProto.FromString(file.read_bytes())
