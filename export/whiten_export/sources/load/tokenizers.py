"""Read the tokenizer of a checkpoint: one of transformers, or a `tokenizer.json`."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from inspect import signature
from typing import Any

from tokenizers import Tokenizer

from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.tokenizer_files import ENDS, add_ends, class_note, read_tokenizer_config, words_note
from whiten_export.sources.describe.tokenizers import UNSET_LENGTH, SourceTokenizer, lower_case, read_backend
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.records import Side
from whiten_runtime.errors import WhitenError, from_clone, one_line


def describe_tokenizer(checkpoint: Checkpoint, tokenizer: Any) -> SourceTokenizer:
    """Describe a transformers tokenizer, with the lower-casing that sentence-transformers' files ask for."""
    try:
        return _describe(checkpoint, tokenizer)
    except WhitenError:
        raise
    except Exception as error:  # of settings that only fail where they are used
        reason = f"{type(error).__name__} {one_line(error)}"
        raise WhitenError(f"'{checkpoint.model}': its tokenizer fails ({reason}); copy its files again") from error


def _describe(checkpoint: Checkpoint, tokenizer: Any) -> SourceTokenizer:
    notes = _file_notes(checkpoint, tokenizer)
    if checkpoint.published is not None and checkpoint.published.do_lower_case:
        if not getattr(tokenizer, "is_fast", False):
            raise WhitenError(f"'{checkpoint.model}' asks for do_lower_case, but has only a {type(tokenizer).__name__}")
        lower_case(tokenizer.backend_tokenizer)

    def own_ids(texts: Sequence[str], max_length: int) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
        return ids

    _check_types(checkpoint, tokenizer)
    pad_token_id = next(
        (number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None), 0
    )
    specials = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    if "pad_token" not in specials:
        specials["pad_token"] = str(tokenizer.convert_ids_to_tokens(pad_token_id))
    length = tokenizer.model_max_length
    return SourceTokenizer(
        json=_as_json(checkpoint, tokenizer),
        own_ids=own_ids,
        pad_token_id=int(pad_token_id),
        specials=specials,
        stated_length=length if length < UNSET_LENGTH else None,
        surplus_from=_surplus_from(tokenizer),
        unknown_token_id=tokenizer.unk_token_id or 0,
        truncation_side=tokenizer.truncation_side,
        notes=notes,
    )


def _file_notes(checkpoint: Checkpoint, tokenizer: Any) -> tuple[str, ...]:
    """Return what an export warns of the files of a transformers tokenizer; add the tokens that they ask for."""
    path, kind = checkpoint.tokenizer_directory / TOKENIZER_FILE, type(tokenizer)
    if not getattr(tokenizer, "is_fast", False) or not path.is_file():
        return ()
    backend = read_backend(path)
    notes = [words_note(path.parent, backend)]
    as_stored = checkpoint.entry is None or checkpoint.entry.lowercase is None
    if as_stored and kind.__module__.startswith("transformers."):
        name = f"the {kind.__name__} of transformers {version('transformers')}"
        notes.append(class_note(backend, tokenizer.backend_tokenizer, name))
    notes.append(obey_ends(checkpoint, tokenizer))
    return tuple(note for note in notes if note is not None)


def obey_ends(checkpoint: Checkpoint, tokenizer: Any) -> str | None:
    """Let a transformers tokenizer add the tokens that its files ask for, and return what is said of it."""
    folder = checkpoint.tokenizer_directory
    if not getattr(tokenizer, "is_fast", False) or not (folder / TOKENIZER_FILE).is_file():
        return None
    kind = type(tokenizer)
    parameters = {} if kind.__module__.startswith("transformers.") else signature(kind).parameters
    own = {name: bool(parameters[name].default) for name in ENDS if name in parameters}
    return add_ends(tokenizer.backend_tokenizer, read_tokenizer_config(checkpoint), own)


def _check_types(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Check that all tokens of a text have type 0, as in a graph; XLNet and Funnel give one the type 2."""
    text = next(iter(tokenizer.all_special_tokens), "a")  # all that a vocabulary without words can read
    types = set(tokenizer(text).get("token_type_ids", ()))
    if any(types):
        raise WhitenError(
            f"'{checkpoint.model}': its tokenizer gives tokens of one text the types {sorted(types)} (token_type_ids), "
            "which is not supported: all would be 0, and vectors others"
        )


def _surplus_from(tokenizer: Any) -> int | None:
    if type(tokenizer).__name__ != "XLMTokenizer":
        return None
    from whiten_export.sources.load.xlm_tokenizer import surplus_pieces

    return max(tokenizer.get_vocab().values()) + 1 if surplus_pieces(tokenizer) else None


def _as_json(checkpoint: Checkpoint, tokenizer: Any) -> str:
    if getattr(tokenizer, "is_fast", False):
        content: str = tokenizer.backend_tokenizer.to_str()
        return content
    name = type(tokenizer).__name__
    try:
        if name == "XLMTokenizer":
            from whiten_export.sources.load.xlm_tokenizer import build_xlm_tokenizer

            return str(build_xlm_tokenizer(tokenizer).to_str())
        from transformers.convert_slow_tokenizer import convert_slow_tokenizer

        converted: str = convert_slow_tokenizer(tokenizer).to_str()
        return converted
    except (ValueError, KeyError, ImportError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise WhitenError(
            f"'{checkpoint.model}' has only a {name}, which cannot be written as tokenizer.json ({reason})"
        ) from error


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
    backend = read_backend(path)
    notes = (words_note(checkpoint.directory, backend), add_ends(backend, described, {}))
    if checkpoint.published is not None and checkpoint.published.do_lower_case:
        lower_case(backend)
    text = backend.to_str()
    stored = (backend.truncation or {}).get("direction")
    side: Side = "left" if described.get("truncation_side", stored) == "left" else "right"
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
    return SourceTokenizer(text, judge, pad, specials, length, truncation_side=side, notes=tuple(filter(None, notes)))


def _by_transformers(checkpoint: Checkpoint) -> SourceTokenizer:
    try:
        from whiten_export.sources.load.network import load_tokenizer, quiet
    except ImportError as error:
        raise WhitenError(
            f"'{checkpoint.model}' has no {TOKENIZER_FILE}, and making one needs {error.name}; install it "
            f"{from_clone('export')}"
        ) from error
    with quiet():
        return describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code=False))
