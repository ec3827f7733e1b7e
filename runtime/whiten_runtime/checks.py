"""Checks of arguments that several modules make."""

import operator
from typing import SupportsIndex

from whiten_runtime.errors import UsageError


def whole_number(name: str, value: SupportsIndex, minimum: int, maximum: int | None = None, why: str = "") -> int:
    """The value as an int.

    Args:
        name: what to call it in the message.
        value: an int, or something that stands for one, such as numpy's.
        minimum: smallest value allowed.
        maximum: largest value allowed, or None.
        why: where the bounds come from.

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
