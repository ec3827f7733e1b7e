"""Read which bundles are served under which names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whiten_runtime.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]*")
_NAMED = re.compile(rf"({_NAME.pattern})=(.+)", re.DOTALL)


@dataclass(frozen=True)
class ModelChoice:
    """Names a bundle to serve.

    Attributes:
        name: name by which requests choose the model.
        bundle: its directory, or a repository of the model hub.
    """

    name: str
    bundle: str


def model_choices(written: Sequence[str]) -> tuple[ModelChoice, ...]:
    """Return the models of arguments [NAME=]BUNDLE; the name is that of the directory if none is given.

    Raises:
        UsageError: there is none, a name cannot be used, or two have the same one.
    """
    if not written:
        raise UsageError("there is no model to serve; give a bundle, as in whiten serve bundles/minilm-l1-l6")
    chosen = tuple(map(_choice, written))
    names = [model.name for model in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models are called '{name}'; give them names, as in first=BUNDLE second=BUNDLE")
    return chosen


def _choice(written: str) -> ModelChoice:
    named = _NAMED.fullmatch(written)
    if named:
        return ModelChoice(named[1], named[2])
    path = Path(written.removeprefix("hf://").partition("@")[0])
    name = path.name if path.name not in ("", "..") else path.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{written}' has no name that a request can use; give one, as in model={written}")
    return ModelChoice(name, written)
