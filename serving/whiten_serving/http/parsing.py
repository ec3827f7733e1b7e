"""Understand the JSON of bodies. What that may cost is bounded first: all other requests wait meanwhile.

Python's parsers of JSON keep the interpreter to themselves, so another thread would not help. Long texts take little
time; millions of lists and numbers take seconds. A body in which there may be so many is parsed as one that holds
texts alone: the first other value ends that at once.
"""

from typing import Generic, TypeVar

import msgspec
import numpy as np

from whiten_serving.http.errors import ApiError

T = TypeVar("T")

_SMALL = 32_768
"""Bytes of a body that may hold anything."""

_VALUES = 2**20
"""Values of a body at most, unless they are texts."""

_LISTS = 2**16
"""Lists and objects of a body at most."""

_CHUNK = 2**20

_COMMA, _BRACKET, _BRACE = b",[{"


class Form(Generic[T]):
    """Describes the body of a route.

    Args:
        kind: type of the body.
        simple: the same without lists in lists and without lists of numbers, for bodies that may hold too many; None
            where the type has none.
    """

    def __init__(self, kind: type[T], simple: type[T] | None = None) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._simple = self._decoder if simple is None else msgspec.json.Decoder(simple)
        self._narrowed = frozenset() if simple is None else frozenset(simple.__annotations__)

    def parsed(self, body: bytes | bytearray) -> T:
        """Return what a body of JSON holds.

        Raises:
            ApiError: it is not JSON, or not what is wanted; the message says where. Or it holds too many values.
        """
        crowded = len(body) > _SMALL and _is_crowded(body)
        try:
            return (self._simple if crowded else self._decoder).decode(body)
        except msgspec.ValidationError as error:
            found = _of_validation(str(error))
            if crowded and str(error).startswith("Expected") and found.param in self._narrowed:
                found = _too_many(str(found.param))
            raise found from None
        except msgspec.DecodeError as error:
            raise ApiError("invalid_json", f"the body is not JSON ({error}); send a JSON object") from None
        except UnicodeDecodeError:
            raise ApiError("invalid_json", "the body is not UTF-8; send JSON in UTF-8") from None
        except RecursionError:
            raise ApiError("invalid_json", "the body's JSON is nested too deeply; send a JSON object") from None


def _is_crowded(body: bytes | bytearray) -> bool:
    """Return whether there may be too many values in a body: commas and brackets of texts count too."""
    values = lists = 0
    whole = np.frombuffer(body, np.uint8)
    for start in range(0, len(whole), _CHUNK):
        part = whole[start : start + _CHUNK]
        values += int(np.count_nonzero(part == _COMMA))
        lists += int(np.count_nonzero((part == _BRACKET) | (part == _BRACE)))
        if values > _VALUES or lists > _LISTS:
            return True
    return False


def _too_many(param: str) -> ApiError:
    message = f"{param} holds other values than texts, in a body of more than {_VALUES} values or {_LISTS} lists"
    return ApiError("too_many_values", f"{message}; send several requests", param)


def _of_validation(message: str) -> ApiError:
    """Return the answer to JSON of a wrong shape; msgspec's message ends with the place, as in "- at `$.input[3]`"."""
    what, _, place = message.partition(" - at `$")
    param = place.strip("`.").partition(".")[0].partition("[")[0] or None
    where = f"{place.rstrip('`').lstrip('.')}: " if place else ""
    if what.startswith("Object contains unknown field"):
        field = what.split("`")[1][:80]
        return ApiError(
            "unknown_field", f"{where}field {field!r} is not one that this server understands; leave it out", field
        )
    if what.startswith("Object missing required field"):
        return ApiError("invalid_type", f"{where}field {what.split('`')[1]!r} is missing", what.split("`")[1])
    return ApiError("invalid_type", f"{where}{what[:1].lower()}{what[1:400]}", param)
