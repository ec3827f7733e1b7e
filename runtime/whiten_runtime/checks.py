"""Check arguments and installed packages, for several modules."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import SupportsIndex

from whiten_runtime.errors import MissingPackageError, TextError, UsageError


def whole_number(name: str, value: SupportsIndex, minimum: int, maximum: int | None = None, why: str = "") -> int:
    """Return the value as an int.

    Args:
        name: name of the argument, for the message.
        value: an int, or a value that converts to one without loss, such as numpy's integers.
        minimum: smallest value allowed.
        maximum: largest value allowed, or None.
        why: reason for the bounds, for the message.

    Raises:
        UsageError: not a whole number, or out of range.
    """
    wanted = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum or (maximum is not None and number > maximum):
        raise UsageError(f"{name} is {value!r}; wanted a whole number {wanted}{why}")
    return number


def one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Check that a value is one of those allowed.

    Args:
        name: name of the argument, for the message.
        value: value that was passed.
        allowed: values that can be used.

    Raises:
        UsageError: the value is not allowed.
    """
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}; wanted {' or '.join(map(str, allowed))}")


def checked_texts(texts: Iterable[str], offset: int = 0) -> list[str]:
    """Check that all texts are strings, and return them as a list.

    Args:
        texts: an iterable of strings.
        offset: index of the first text, for the message.

    Raises:
        TextError: `texts` cannot be iterated, or an item is not a string.
    """
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise TextError(f"texts is {_described(texts)}; wanted a str or an iterable of str")
    items = list(texts)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise TextError(f"texts[{offset + index}] is {_described(item)}; wanted a str")
    return items


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD; join surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turn an ImportError in the block into an error that names the extra to install.

    Raises:
        MissingPackageError: a package of the extra is missing.
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:
        raise MissingPackageError(
            f"this needs {error.name or error}; install it with pip install 'whiten[{extra}]'"
        ) from error


def _described(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
