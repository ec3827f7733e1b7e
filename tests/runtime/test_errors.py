"""Test which collections of texts are taken: columns of tables are, what would silently mean something else is not."""

import io
from collections import UserDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.families import WIDTH
from whiten import Encoder, TextError
from whiten_runtime.errors import checked_texts

TEXTS = ["a text", "", "日本"]


class Column:
    """A column that holds objects of its own, which `name` turns into Python's."""

    def __init__(self, name: str, items: list[Any]) -> None:
        setattr(self, name, lambda: items)

    def __iter__(self) -> Any:
        raise AssertionError("its own objects were read")

    def keys(self) -> Any:
        raise AssertionError("as pandas' series have them")


@pytest.mark.parametrize("name", ["to_pylist", "to_list", "tolist"])
def test_columns_become_lists(name: str, tiny: Encoder) -> None:
    assert checked_texts(Column(name, TEXTS)) == TEXTS  # type: ignore[arg-type]
    assert tiny.encode(Column(name, TEXTS)).shape == (3, WIDTH)  # type: ignore[arg-type]
    assert len(list(tiny.encode_iter(Column(name, TEXTS)))) == 3  # type: ignore[arg-type]
    assert len(tiny.token_count(Column(name, TEXTS))) == 3  # type: ignore[arg-type]
    for missing in (None, float("nan")):
        with pytest.raises(TextError, match=rf"texts\[3\] is {type(missing).__name__}"):
            checked_texts(Column(name, [*TEXTS, missing]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "texts", [TEXTS, tuple(TEXTS), deque(TEXTS), iter(TEXTS), dict.fromkeys(TEXTS).keys(), np.array(TEXTS)]
)
def test_lists_and_iterators_are_taken(texts: Any) -> None:
    assert checked_texts(texts) == TEXTS
    with pytest.raises(TextError, match=r"texts\[0\] is list"):
        checked_texts(np.array([["a", "b"]]))  # type: ignore[arg-type]


def test_columns_of_pyarrow(tiny: Encoder) -> None:
    pyarrow = pytest.importorskip("pyarrow", "16")
    want = tiny.encode(TEXTS)
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        array = pyarrow.array(TEXTS, kind)
        for column in (array, pyarrow.chunked_array([array[:1], array[1:]]), pyarrow.table({"t": array})["t"]):
            np.testing.assert_array_equal(tiny.encode(column), want)
    with pytest.raises(TextError, match=r"texts\[1\] is NoneType None"):
        tiny.encode(pyarrow.array(["a", None]))
    with pytest.raises(TextError, match=r"texts\[0\] is dict"):
        tiny.encode(pyarrow.table({"t": TEXTS}))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "polars", "datasets"])
def test_columns_of_other_libraries(library: str, tiny: Encoder) -> None:
    made = pytest.importorskip(library, reason="needs the extra test-all")
    if library == "datasets":
        table = made.Dataset.from_dict({"text": TEXTS, "missing": ["a", None, "b"]})
        columns = [table["text"]]
    else:
        table = made.DataFrame({"text": TEXTS, "missing": ["a", None, "b"]})
        columns = [table["text"], made.Series(TEXTS)]
    if library == "pandas":
        columns += [made.Series(TEXTS, index=[7, 8, 9], dtype=kind) for kind in (object, "string", "category")]
        columns += [made.Index(TEXTS), columns[-2].array]
    for column in columns:
        np.testing.assert_array_equal(tiny.encode(column), tiny.encode(TEXTS))
    with pytest.raises(TextError, match=r"texts\[1\] is (NoneType|float|NAType)"):
        tiny.encode(table["missing"])
    with pytest.raises(TextError, match=r"texts is DataFrame .*; wanted a str|texts\[0\] is dict|Series"):
        tiny.encode(table)


@pytest.mark.parametrize(
    "texts",
    [
        *({"text": "number"}, UserDict({"text": "number"}), {"a", "b"}, frozenset({"a", "b"}), 7, np.array("text")),
        *(io.StringIO("a\nb\n"), io.BytesIO(b"a\nb\n"), b"text", bytearray(b"text"), memoryview(b"text")),
        Path("file.txt"),
    ],
)
def test_what_holds_no_texts_in_order_is_refused(tiny: Encoder, texts: Any) -> None:
    for embed in (tiny.encode, tiny.encode_query, tiny.encode_iter, tiny.token_count):
        with pytest.raises(TextError, match=f"texts is {type(texts).__name__} .*; wanted a str, or a list") as caught:
            embed(texts)
        assert "\n" not in str(caught.value)
