"""Public names speak of public types only: whoever calls one can name all that it takes and returns."""

import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("onnx_ir")

import whiten

PENDING = {"Encoder.placement", "Encoder.tokens"}
"""What still shows a private type."""

PUBLIC = {name: getattr(whiten, name) for name in whiten.__all__ if name != "__version__"}


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a public name shows: itself, as a function or by its fields, its constructor, methods, properties."""
    yield name, value
    if not isinstance(value, type):
        return
    for attribute in dir(value):
        if attribute.startswith("_") and attribute not in ("__init__", "__call__", "__iter__"):
            continue
        member = inspect.getattr_static(value, attribute)
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(member):
            yield (name if attribute == "__init__" else f"{name}.{attribute}"), member


def types_in(hint: Any) -> Iterator[type]:
    """Yield the classes that a type hint names."""
    if isinstance(hint, list):
        for part in hint:
            yield from types_in(part)
    elif parts := typing.get_args(hint):
        yield from types_in(list(parts))
    elif isinstance(hint, type):
        yield hint


def private_types(member: Any) -> set[str]:
    """Return the names of this project's types in a member's signature or fields that are not public."""
    pytest.importorskip("starlette", reason="AsyncEncoder.asgi_app returns its application")
    from starlette.applications import Starlette

    names = vars(sys.modules[member.__module__]) | {"Starlette": Starlette}
    hints = typing.get_type_hints(member, globalns=names)
    shown = [hint for name, hint in hints.items() if not name.startswith("_")]
    ours = {kind for kind in types_in(shown) if kind.__module__.startswith("whiten")}
    return {kind.__name__ for kind in ours if PUBLIC.get(kind.__name__) is not kind}


MEMBERS = [found for name, value in PUBLIC.items() for found in members(name, value)]


def test_signatures_and_fields_name_public_types_but_for_what_is_pending() -> None:
    assert {name for name, member in MEMBERS if private_types(member)} == PENDING
