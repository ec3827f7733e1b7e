"""Write texts so that YAML, Python and Markdown read them as they are, in one line."""

import re

from whiten_runtime.checks import encodable


def quoted(text: str) -> str:
    """Return a text between quotation marks, as YAML and Python read it."""
    return '"' + "".join(map(_escaped, encodable(text))) + '"'


def plain(text: str) -> str:
    """Return a text in one line that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>#&~])", r"\\\1", _one_line(text))


def code(text: str) -> str:
    """Return a text in one line, as code of Markdown."""
    line = _one_line(text)
    marks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{marks}{space}{line}{space}{marks}"


def _one_line(text: str) -> str:
    """Return a text in one line, with characters that cannot be shown as codes."""
    return "".join(_escaped(one) if not one.isprintable() else one for one in " ".join(encodable(text).split()))


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 1 << 8 else f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"
