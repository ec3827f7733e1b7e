"""Define the kinds of values that options take: how each is written, and how a text or a value of TOML becomes it."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from whiten_serving.http.options import LONGEST

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@,A-Z]+")
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Kind:
    """Describes the values of an option.

    Attributes:
        metavar: how the command's help writes a value.
        wanted: what a value must be, for messages.
        parse: function from a text to a value, which raises ValueError if the text is none.
        native: types of TOML, besides text, that are taken too.
        several: whether an option takes several values: repeated on the command line, a list in TOML, and separated by
            commas in the environment.
        write: function from a value to how help and docs write it.
    """

    metavar: str
    wanted: str
    parse: Callable[[str], Any]
    native: tuple[type, ...] = ()
    several: bool = False
    write: Callable[[Any], str] = str

    @property
    def flag(self) -> bool:
        """Return whether the option is a switch, which the command line writes without a value."""
        return self.native == (bool,)

    def value(self, raw: object) -> Any:
        """Return the value that a text, or a value of TOML, stands for.

        Raises:
            ValueError: it stands for none; the message says what is wanted.
        """
        if self.several:
            parts = _parts(raw)
            if not parts and raw:  # such as a comma alone
                raise ValueError(self.wanted)
            return tuple(self._single(part) for part in parts)
        return self._single(raw)

    def _single(self, raw: object) -> Any:
        if not isinstance(raw, (str, *self.native)) or (isinstance(raw, bool) and not self.flag):
            raise ValueError(self.wanted)
        try:
            return self.parse(str(raw))
        except (ValueError, OverflowError):
            raise ValueError(self.wanted) from None


def _parts(raw: object) -> Sequence[object]:
    if isinstance(raw, str):
        return [part for part in map(str.strip, raw.split(",")) if part]
    return raw if isinstance(raw, list | tuple) else [raw]


def text(metavar: str = "TEXT", several: bool = False) -> Kind:
    """Return the kind of any text that is not empty."""
    wanted = "a text that is not empty" + (", or several" if several else "")
    return Kind(metavar, wanted, _not_empty, several=several)


def origin() -> Kind:
    """Return the kind of origins of pages, as browsers send them; several may be given."""
    wanted = "an origin as browsers send it, such as https://a.example:8443, in small letters and without a path, or *"
    return Kind("ORIGIN", f"{wanted}; repeat the option for several", _origin, several=True)


def choice(*values: str) -> Kind:
    """Return the kind of one of a few words."""
    return Kind("|".join(values), f"one of {', '.join(values)}", lambda raw: values[values.index(raw)])


def flag() -> Kind:
    """Return the kind of a switch."""
    return Kind("", "true or false", lambda raw: _found(_FLAGS, raw.lower()), native=(bool,))


def whole(minimum: int, maximum: int | None = None) -> Kind:
    """Return the kind of a whole number within bounds."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    parse = _within(int, minimum, math.inf if maximum is None else maximum)
    return Kind("N", f"a whole number {bounds}", parse, native=(int,))


def seconds(minimum: float = 0.0) -> Kind:
    """Return the kind of a duration: seconds, or a number with ms, s, m or h; a week at most."""
    least = f"at least {minimum:g} s and " if minimum else ""
    wanted = f"seconds, such as 30, 2.5, 500ms, 30s or 2m, {least}at most {LONGEST} s"
    parse = _within(_seconds, minimum, LONGEST)
    return Kind("SECONDS", wanted, parse, native=(int, float), write=lambda value: f"{value:g} s")


def size(minimum: int = 1) -> Kind:
    """Return the kind of a number of bytes, or a number with KB, MB, GB, KiB, MiB or GiB."""
    wanted = f"a number of bytes, such as 1000000, 32MB or 16MiB, at least {minimum}"
    return Kind("SIZE", wanted, _within(_size, minimum, math.inf), native=(int,), write=_written_size)


def _not_empty(raw: str) -> str:
    return raw if raw.strip() else _refuse()


def _origin(raw: str) -> str:
    return raw if _ORIGIN.fullmatch(raw) else _refuse()


def _within(parse: Callable[[str], Any], minimum: float, maximum: float) -> Callable[[str], Any]:
    def within(raw: str) -> Any:
        value = parse(raw)
        return value if minimum <= value <= maximum else _refuse()

    return within


def _seconds(raw: str) -> float:
    number, unit = _measured(raw)
    return float(number) * float(_found(_UNITS, unit.lower()))


def _size(raw: str) -> int:
    number, unit = _measured(raw)
    return round(float(number) * int(_found(_SIZES, unit.upper())))


def _written_size(value: int) -> str:
    """Return a number of bytes with the largest unit of which it is a whole number."""
    units = sorted(_SIZES.items(), key=lambda entry: -entry[1])
    unit, factor = next(entry for entry in units if value % entry[1] == 0)
    return f"{value // factor}{unit.replace('IB', 'iB')}"


def _measured(raw: str) -> tuple[str, str]:
    found = _NUMBER.fullmatch(raw.strip())
    return (found[1], found[2]) if found else _refuse()


def _found(table: dict[str, Any], key: str) -> Any:
    return table[key] if key in table else _refuse()


def _refuse() -> Any:
    raise ValueError
