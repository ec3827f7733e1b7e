"""Compare the files of a tokenizer where they say different things, and obey what its authors trained with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from whiten_export.proof.probe_texts import TOKENIZER_TEXTS, probe_texts
from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.files import read_settings
from whiten_runtime.errors import WhitenError

_WITH_ENDS = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer")
"""Classes that in transformers 4 add the tokens of tokenizer_config.json, whatever tokenizer.json adds."""

ENDS = {"add_bos_token": ("bos_token", True), "add_eos_token": ("eos_token", False)}
"""Settings that add a token to a text, the role of that token, and the default of these classes. The first begins a
text, the second ends it."""

_NUMBERS = ("In 1984 and 2023, 650841823 of 1000000 were counted.", "3 + 12 = 15; v2.10.1, 24/7")
"""Texts with numbers, which some tokenizers cut into digits."""

_FEW = 0.01
"""Share of tokens that a list of words may have otherwise than tokenizer.json: some lists repeat tokens."""

_BESIDE = ("vocab.txt", "vocab.json")
"""Names of lists of words."""


def read_tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the tokenizer_config.json of a checkpoint; without one, there are no settings."""
    path = checkpoint.tokenizer_directory / "tokenizer_config.json"
    return read_settings(path) if path.is_file() else {}


def add_ends(backend: Tokenizer, settings: Mapping[str, Any], own: Mapping[str, bool]) -> str | None:
    """Let a tokenizer begin and end texts as tokenizer_config.json asks, where tokenizer.json does otherwise.

    transformers 4 obeys the former, transformers 5 the latter, and does not give these settings to own code that takes
    them. Models such as intfloat/e5-mistral-7b-instruct and Alibaba-NLP/gte-Qwen2-7B-instruct pool the token that ends
    a text.

    Args:
        backend: tokenizer, which is changed.
        settings: content of tokenizer_config.json.
        own: the settings of `ENDS` that own code of the tokenizer takes, with their defaults; empty without such code.

    Returns:
        What is said of it; None if both files agree.
    """
    usual = own or {name: begins for name, (_, begins) in ENDS.items()}
    contents = {name: _content(settings.get(role)) for name, (role, _) in ENDS.items()}
    tokens = {name: text for name, text in contents.items() if text and backend.token_to_id(text) is not None}
    encoding = backend.encode("")
    ids = [number for number, mask in zip(encoding.ids, encoding.attention_mask, strict=True) if mask]
    present = dict(zip(ENDS, (ids[:1], ids[-1:]), strict=True))
    added = [name for name, text in tokens.items() if present[name] == [backend.token_to_id(text)]]
    kind = str(settings.get("tokenizer_class")).removesuffix("Fast")
    obeyed = (bool(own) or kind in _WITH_ENDS) and any(name in settings for name in usual)

    def is_wanted(name: str) -> bool:
        """Return whether the settings ask for a token; what own code does not take is as tokenizer.json has it."""
        return bool(settings.get(name, obeyed and usual[name])) if name in usual else name in added

    wanted = [name for name in tokens if is_wanted(name)]
    missing = [name for name in wanted if name not in added]
    surplus = [name for name in added if name not in wanted] if obeyed else []
    if not (missing or surplus) or backend.num_special_tokens_to_add(False) > len(added):
        return None
    asked = f"tokenizer_config.json of {kind} asks for {' and '.join(missing)}, and tokenizer.json does not add it"
    if not obeyed:
        return f"{asked}: it is left out here; if the model was trained with it, save a tokenizer that adds it"
    first, last = ([tokens[name]] if name in wanted else [] for name in ENDS)
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys([*first, *last])],
    )
    refused = f"tokenizer_config.json of {kind} asks for no {' and '.join(surplus)}, and tokenizer.json adds it"
    changes = [f"{asked}: it is added here"] * bool(missing) + [f"{refused}: it is left out here"] * bool(surplus)
    return (
        f"{'; '.join(changes)}, as transformers 4 does; transformers 5 obeys tokenizer.json, and sentence-transformers "
        "gives other vectors with that"
    )


def _content(token: Any) -> str | None:
    """Return the text of a special token in tokenizer_config.json."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def words_note(folder: Path, backend: Tokenizer) -> str | None:
    """Return what is said of a list of words that gives tokens other ids than the tokenizer.json beside it."""
    known = backend.get_vocab()
    for path in (folder / name for name in _BESIDE if (folder / name).is_file()):
        try:
            words = read_settings(path) if path.suffix == ".json" else _lines(path)
        except WhitenError:  # it is not read besides
            continue
        others = [word for word, number in words.items() if known.get(word) != number]
        if len(others) > _FEW * len(words):
            return (
                f"{path.name} and tokenizer.json contradict each other: {len(others):,} of the {len(words):,} tokens "
                f"of {path.name}, such as {others[0][:40]!r}, have another id or none in tokenizer.json, which is "
                "used; remove the one that the model was not trained with"
            )
    return None


def _lines(path: Path) -> dict[str, int]:
    """Return the tokens of a vocab.txt, one in a line, and their ids."""
    lines = path.read_text("utf-8", errors="replace").split("\n")
    return {line.rstrip("\r"): number for number, line in enumerate(lines) if line.strip()}


def class_note(backend: Tokenizer, theirs: Tokenizer, name: str) -> str | None:
    """Return what is said of a class of transformers that gives other ids than tokenizer.json.

    Args:
        backend: the tokenizer of tokenizer.json.
        theirs: the tokenizer that the class made.
        name: name of the class and version of transformers.
    """
    added = [token.content for token in theirs.get_added_tokens_decoder().values()]
    texts = [_printable(text) for text in (*probe_texts(1), *TOKENIZER_TEXTS, *_NUMBERS)]
    texts = [text for text in texts if not any(token in text for token in added)]
    try:
        compared = zip(texts, _ids(backend, texts), _ids(theirs, texts), strict=True)
    except Exception:  # the tokenizer fails on these texts: what reads it next says why
        return None
    for text, ids, own in compared:
        if ids != own:
            return (
                f"tokenizer.json gives {text[:40]!r} other tokens than {name}, which takes little but its words, and "
                "is used here and by sentence-transformers; if the model was trained with tokenizer.json, write "
                '"tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json'
            )
    return None


def _printable(text: str) -> str:
    """Return a text with single blanks for white space and control characters, on which many classes differ."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts, without special tokens and padding."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    return [[number for number, mask in zip(one.ids, one.attention_mask, strict=True) if mask] for one in encodings]
