"""Repositories in a cache of the hub, so that names of the catalogue can be resolved without a network."""

from pathlib import Path

from whiten_models.catalogue import find

COMMIT = "1234567890" * 4


def make_snapshot(cache: Path, name: str) -> Path:
    """Make the repository of a name of the catalogue in a cache, and return the folder for its files, not yet made."""
    entry = find(name)
    assert entry is not None
    repository = cache / f"models--{entry.checkpoint.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT
