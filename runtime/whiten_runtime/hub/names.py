"""Name a repository of the model hub: ORG/NAME, hf://ORG/NAME or hf://ORG/NAME@REVISION."""

import re
from dataclasses import dataclass

from whiten_runtime.errors import UsageError

SCHEME = "hf://"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_ID = re.compile(f"{_PART}/{_PART}")
_LONGEST = 96


@dataclass(frozen=True)
class Repository:
    """Names a repository of the hub."""

    id: str  # ORG/NAME
    revision: str | None = None  # branch, tag or commit; None for the main branch


def is_repository_id(text: str) -> bool:
    """Return whether a text has the form of ORG/NAME."""
    whole = _ID.fullmatch(text) is not None
    return whole and len(text) <= _LONGEST and "--" not in text and ".." not in text and not text.endswith(".git")


def parse_repository(text: str, revision: str | None = None) -> Repository:
    """Read the name of a repository."""
    name, at, own = text.removeprefix(SCHEME).partition("@") if text.startswith(SCHEME) else (text, "", "")
    if not is_repository_id(name) or (at and not own):
        raise UsageError(
            f"{text!r} does not name a repository of the hub; wanted ORG/NAME or {SCHEME}ORG/NAME@REVISION"
        )
    if at and revision is not None:
        raise UsageError(f"'{text}' names a revision already; leave revision {revision!r} out")
    wanted = own or revision
    if wanted is not None:
        check_revision(wanted)
    return Repository(name, wanted)


def check_revision(revision: str) -> None:
    """Check that a revision can be the name of a branch or tag, or a commit: the hub's cache makes a path of it."""
    if (
        not isinstance(revision, str)
        or not {"", ".", ".."}.isdisjoint(revision.split("/"))
        or not {"\\", ":"}.isdisjoint(revision)
        or not revision.isprintable()
    ):
        raise UsageError(f"revision is {revision!r}; wanted the name of a branch or tag, or a commit")
