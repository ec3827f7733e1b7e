"""Name the Python code that comes with a checkpoint and is not run, in whose place are transformers' own classes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.settings import read_settings
from whiten_runtime.bundle.records import Source

_TOKENIZER = "AutoTokenizer"
_NETWORK = ("AutoConfig", "AutoModel")


def ignored_code(checkpoint: Checkpoint, runs: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the files of a checkpoint's own code for its config, network and tokenizer that are not run, by name.

    Models of the catalogue that need no such code are known to be right without it, and have none here.

    Args:
        checkpoint: files of the model.
        runs: classes of transformers, such as "AutoModel", in whose place code of the checkpoint may run.
    """
    if checkpoint.entry is not None and not checkpoint.entry.remote_code:
        return ()
    codes = dict(_codes(checkpoint.tokenizer_directory / "tokenizer_config.json", (_TOKENIZER,)))
    if checkpoint.kind == "transformers":
        codes |= dict(_codes(checkpoint.directory / "config.json", _NETWORK))
    return tuple(sorted({file for name, file in codes.items() if name not in runs}))


def code_notes(checkpoint: Checkpoint, record: Source, trust_remote_code: bool) -> tuple[str, ...]:
    """Return what an export says of a checkpoint's own code that was not run; nothing without such code."""
    if not record.ignored_code:
        return ()
    could_run = checkpoint.kind == "transformers" and not trust_remote_code
    hint = ", which may be others: read the code, and run it with --trust-remote-code" if could_run else ""
    return (
        f"{checkpoint.name} has Python code of its own that was not run: {', '.join(record.ignored_code)}; its vectors "
        f"here are those of transformers' classes{hint}",
    )


def _codes(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the names for which a file's `auto_map` has code, and the file of it."""
    mapped = read_settings(path).get("auto_map") if path.is_file() else None
    if isinstance(mapped, list):  # of a tokenizer, in older files
        mapped = {_TOKENIZER: mapped}
    for name, place in mapped.items() if isinstance(mapped, dict) else ():
        if name in names and (reference := _reference(place)) is not None:
            yield name, f"{reference.rpartition('.')[0]}.py"


def _reference(place: Any) -> str | None:
    """Return a class such as "modeling.Model"; that of a fast tokenizer goes before a slow one's, which comes first."""
    places = place if isinstance(place, list) else [place]
    return next((one for one in reversed(places) if isinstance(one, str) and "." in one), None)
