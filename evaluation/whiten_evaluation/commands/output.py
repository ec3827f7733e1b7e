"""Write files of results: each appears complete or not at all."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from whiten_runtime.files.replacing import check_file_place, check_folder_place, flush, hidden_file, publish, written_as


def check_files(folder: Path, names: Iterable[str], elsewhere: str) -> None:
    """Check that files can be written into a folder, which need not exist.

    Args:
        folder: the folder.
        names: names of the files.
        elsewhere: what the user may name instead, for messages.

    Raises:
        UsageError: the folder is a file, or a file a directory.
        WhitenError: they cannot be written.
    """
    if not folder.is_dir():
        check_folder_place(folder, elsewhere)
        return
    for name in names:
        check_file_place(folder / name, elsewhere)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if it does not exist; replace files of the same names.

    All contents are on disk before the first file gets its name.

    Raises:
        WhitenError: a file cannot be written; the message names it.
    """
    with ExitStack() as stack:
        with written_as(folder):
            folder.mkdir(parents=True, exist_ok=True)
        hidden = {}
        for name, content in contents.items():
            file, temporary = stack.enter_context(hidden_file(folder / name))
            file.write(content)
            flush(file)
            hidden[name] = file, temporary
        for name, (file, temporary) in hidden.items():
            publish(file, temporary, (folder / name).resolve())
