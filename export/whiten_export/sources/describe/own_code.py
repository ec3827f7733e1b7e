"""Name the Python code that comes with a checkpoint: what runs, and in whose place are transformers' own classes."""

from whiten_export.sources.describe.auto_map import network_code, split_repository, tokenizer_code
from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_runtime.bundle.records import Source


def code_that_ran(checkpoint: Checkpoint, runs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of code that runs, by name: "own.py", or "ORG/NAME@COMMIT/own.py" of another repository.

    Args:
        checkpoint: files of the model.
        runs: classes of transformers, such as "AutoModel", in whose place code of the checkpoint runs.
    """
    files = (split_repository(file) for name, file in _codes(checkpoint).items() if name in runs)
    places = {repository: f"{repository}@{commit}/" for repository, commit in checkpoint.code.items()}
    return tuple(sorted({f"{places[repository] if repository else ''}{name}" for repository, name in files}))


def ignored_code(checkpoint: Checkpoint, runs: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the files of a checkpoint's own code for its config, network and tokenizer that are not run, by name.

    Models of the catalogue are known to be right without such code, and have none here.

    Args:
        checkpoint: files of the model.
        runs: classes of transformers, such as "AutoModel", in whose place code of the checkpoint runs.
    """
    if checkpoint.entry is not None:
        return ()
    return tuple(sorted({file for name, file in _codes(checkpoint).items() if name not in runs}))


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


def way_to_code(checkpoint: Checkpoint) -> str | None:
    """Return where a checkpoint's own code lies and how it is run, for messages; None without any."""
    files = sorted(set(_codes(checkpoint).values()))
    if not files:
        return None
    others = sorted({repository for repository, _ in map(split_repository, files) if repository})
    where = f"in the repository {' and '.join(others)}" if others else f"in its folder: {', '.join(files)}"
    return f"comes with Python code of its own ({where}); read it, then allow it with --trust-remote-code"


def _codes(checkpoint: Checkpoint) -> dict[str, str]:
    codes = tokenizer_code(checkpoint.tokenizer_directory)
    return codes | network_code(checkpoint.directory) if checkpoint.kind == "transformers" else codes
