"""Define the errors, and the checks of arguments and installed packages that raise them.

Each message is one line that says what was passed, what was wanted, and what to do.
"""

import errno
import io
import operator
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal, SupportsIndex


class WhitenError(Exception):
    """Raised, as a subclass, for every error that this project reports; command lines exit with `exit_code`."""

    exit_code = 1


class UsageError(WhitenError, ValueError):
    """Raised when an argument or option cannot be used as given."""

    exit_code = 2


class TextError(WhitenError, TypeError):
    """Raised when an item of the texts is not a string, or vectors are not finite numbers."""


class TooLongError(WhitenError, ValueError):
    """Raised when a text has more tokens, or characters, than are read and `truncate=False` forbids truncating it.

    Attributes:
        length: number of its tokens, or characters.
        limit: number of them that are read.
        unit: "tokens" or "characters".
        index: index of the text in its call; None where a call has one.
    """

    def __init__(self, length: int, limit: int, unit: str, advice: str, index: int | None = None) -> None:
        read = f"the bundle takes {limit}" if unit == "tokens" else f"at most {limit} are read"
        text = "text" if index is None else f"texts[{index}]"
        super().__init__(f"{text} has {length} {unit}, but {read}; {advice}")
        self.length, self.limit, self.unit, self.index = length, limit, unit, index
        self._advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.length, self.limit, self.unit, self._advice, self.index)


class ClosedError(WhitenError):
    """Raised when an encoder or a batcher is used that was closed, or that is of another process."""


class DataError(WhitenError):
    """Raised when a file of texts, pairs or vectors cannot be read as asked."""


class BundleError(WhitenError):
    """Raised when a bundle is missing, incomplete, or not a bundle, or gives vectors that are not finite."""


class Reason(str):
    """Says why a text has no vector, and what to do about it where that is not `_LEAVE_OUT`."""

    __slots__ = ("advice",)
    advice: str

    def __new__(cls, words: str, advice: str) -> "Reason":
        reason = super().__new__(cls, words)
        reason.advice = advice
        return reason

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.advice


_LEAVE_OUT = "leave it out, or export the model again"

NOT_FINITE = Reason(
    "gets a vector from this bundle that is not finite",
    "leave it out, run whiten verify, or export the model again with --precision fp32",
)
"""Reason of a NoVectorError where onnxruntime does not fail."""


class NoVectorError(BundleError):
    """Raised when a bundle gives no vector of finite numbers for some texts, or vectors, of a call.

    Attributes:
        failures: why, for each of them, by its index in the call.
        index: the least of these indices.
        advice: what to do about the text of that index.
        text: the text of that index, where it is known.
    """

    text: str | None = None

    def __init__(self, failures: Mapping[int, str], name: str = "texts") -> None:
        self.failures, self.index, self._name = dict(failures), min(failures), name
        reason = failures[self.index]
        others = f", and {len(failures) - 1} more such {name}" if len(failures) > 1 else ""
        self.advice = reason.advice if isinstance(reason, Reason) else _LEAVE_OUT
        super().__init__(f"{name}[{self.index}] {reason}{others}; {self.advice}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.failures, self._name), {"text": self.text}

    def moved(self, offset: int, name: str | None = None) -> "NoVectorError":
        """Return the error of a call in which these texts come after `offset` others, and may have another name."""
        return self._with({offset + index: reason for index, reason in self.failures.items()}, name)

    def placed(self, places: Sequence[int]) -> "NoVectorError":
        """Return the error of a call whose texts were computed once each: text i is that of index `places[i]`."""
        failed = self.failures
        return self._with({index: failed[place] for index, place in enumerate(places) if place in failed})

    def _with(self, failures: Mapping[int, str], name: str | None = None) -> "NoVectorError":
        error = NoVectorError(failures, name or self._name)
        error.text = self.text
        return error


class RunError(WhitenError):
    """Raised when onnxruntime fails on a batch."""


class IntegrityError(BundleError):
    """Raised when a file of a bundle differs from its manifest."""


class UnsafeModelError(BundleError):
    """Raised when a graph uses operators or files that a bundle may not use."""


class MissingPackageError(WhitenError, ImportError):
    """Raised when a required package is not installed; the message names the extra that installs it."""


class ProviderError(WhitenError):
    """Raised when onnxruntime cannot run the model on the provider asked for."""


class ParityError(WhitenError):
    """Raised when vectors differ from the reference by more than the parity gate allows."""


_TO_LIST = ("to_pylist", "to_list", "tolist")
"""Methods by which columns of tables become lists of Python's own objects."""


_OTHERS = (set, frozenset, bytes, bytearray, memoryview, os.PathLike, io.IOBase)
"""Types that iterate over something else than texts, or in no order."""


def whole_number(name: str, value: SupportsIndex, minimum: int, maximum: int | None = None, why: str = "") -> int:
    wanted = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum or (maximum is not None and number > maximum):
        raise UsageError(f"{name} is {written(value)}; wanted a whole number {wanted}{why}")
    return number


_WHOLE = re.compile(r"-?[0-9]{1,18}")


def parse_whole(text: str) -> int | None:
    """Return the whole number of some ASCII digits; None for all else, such as 1_0 and +1, which `int` takes."""
    return int(text) if _WHOLE.fullmatch(text) else None


def path_of(name: str, value: object) -> Path:
    """Return a path that was passed as a text or as an object with `__fspath__`, such as a `Path`."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(f"{name} is {described(value)}; wanted a path, a str or a Path")
    if not text:
        raise UsageError(f"{name} is an empty text; wanted a path")
    if "\0" in text:
        raise UsageError(f"{name} is {text!r}; wanted a path, and no path has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{name} is {text!a}, which is no text in the encoding of names here ({sys.getfilesystemencoding()}), "
            "and libraries that read models want text: set PYTHONUTF8=1, or give it a name in UTF-8"
        ) from None
    return Path(text)


def kind_of_place(path: Path, error: type[WhitenError] = UsageError) -> Literal["file", "directory", "other"] | None:
    """Return what is at a path that was passed, links followed; None for nothing.

    Raises:
        WhitenError: of the type `error`: the system does not look it up, as in a folder of another user.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as reason:
        why = getattr(reason, "strerror", None) or reason
        raise error(f"'{path}' cannot be looked up ({why}); check the path and its permissions") from None
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


def check_file(path: Path, advice: str, error: type[WhitenError] = UsageError) -> None:
    kind = kind_of_place(path, error)
    if kind != "file":
        what = {None: "does not exist", "directory": "is a directory", "other": "is no regular file"}[kind]
        raise error(f"'{path}' {what}; {advice}")


def instance_of(name: str, value: object, kind: type, hint: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {described(value)}; wanted a {kind.__name__}, such as {hint}")


def check_flags(**flags: object) -> None:
    """Check that arguments are True or False, Python's or numpy's."""
    for name, value in flags.items():
        if type(value).__name__ not in ("bool", "bool_"):
            raise UsageError(f"{name} is {described(value)}; wanted True or False")


def one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    if not any(isinstance(value, type(choice)) and value == choice for choice in allowed):
        raise UsageError(f"{name} is {written(value)}; wanted {' or '.join(map(str, allowed))}")


def as_iterable(texts: Iterable[str]) -> Iterable[str]:
    """Return texts as something whose items are strings of Python, if they are texts.

    Columns of tables, which have `to_pylist`, `to_list` or `tolist` (pyarrow, pandas, polars, datasets, numpy), become
    lists.
    """
    if isinstance(texts, list | tuple):
        return texts
    for name in _TO_LIST:
        if hasattr(texts, name) and not isinstance(texts, type | memoryview):
            if isinstance(items := getattr(texts, name)(), list):
                return items
            raise TextError(f"texts is {described(texts)}; wanted a str, or a list or another iterable of str")
    if not isinstance(texts, Iterable) or isinstance(texts, _OTHERS) or hasattr(texts, "keys"):
        raise TextError(f"texts is {described(texts)}; wanted a str, or a list or another iterable of str")
    return texts


def checked_texts(texts: Iterable[str], offset: int = 0) -> list[str]:
    items = list(as_iterable(texts))
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise TextError(f"texts[{offset + index}] is {described(item)}; wanted a str")
    return items


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD; join surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def from_clone(extra: str) -> str:
    """Return the command that installs an extra; whiten is on no package index, and constraints keep torch small."""
    return f"from the clone: python -m pip install -c constraints.txt '.[{extra}]'"


def needing(extra: str) -> AbstractContextManager[None]:
    """Turn an ImportError in the block into an error that names the extra to install."""
    return _installing(from_clone(extra))


def needing_package(package: str) -> AbstractContextManager[None]:
    """Turn an ImportError in the block into an error that names the package to install."""
    return _installing(f"with pip install '{package}'")


@contextmanager
def _installing(how: str) -> Iterator[None]:
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:
        raise MissingPackageError(f"this needs {error.name or error}; install it {how}") from error


CANNOT_WRITE = frozenset((errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, errno.EROFS, errno.EIO))
"""Errors of the system that only writing gives, whether or not they name a file."""


FAULTS = (MemoryError, ImportError, LookupError, TypeError, AttributeError, NameError, AssertionError, ArithmeticError)
"""Errors that show a fault of a program, or too little memory: they say nothing of disks, stores or networks."""


def one_line(error: object) -> str:
    """Return the message of an exception in one line."""
    return " ".join(str(error).split())


def described(value: object) -> str:
    """Return the type of a value that was passed, with its shape or else its beginning, on one line, for messages."""
    kind, shape, numbers = type(value).__name__, getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and shape:
        return f"{kind} of shape {list(shape)}" if numbers is None else f"{kind} of {numbers} {list(shape)}"
    return f"{kind} {written(value)}"


def written(value: object) -> str:
    """Return the beginning of a value that was passed, as Python writes it, on one line."""
    text = one_line(repr(value))
    return text if len(text) <= 40 else text[:37] + "..."
