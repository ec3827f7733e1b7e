"""Compare what the JavaScript client takes from Python: tables, and the map of characters of SentencePiece."""

import base64
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from msgspec.inspect import DictType, StructType, Type, UnionType, VarTupleType, type_info

from support.cli import python
from support.corpus import NASTY, sentences
from support.vocabularies import write_sentencepiece
from whiten_runtime.bundle import manifest as manifests
from whiten_runtime.bundle.manifest import FORMAT_VERSION, LEAST, NESTED_METHODS, Input, Manifest, Precision, Side
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.inference.embedder import TOKEN_CHARACTERS
from whiten_runtime.inference.options import TASK_PROMPTS

pytestmark = pytest.mark.slow


def add_fields(kind: Type, place: str, fields: dict[str, list[str]]) -> None:
    """Add the names of the fields of a record, and of those in it, by their places."""
    if isinstance(kind, UnionType):
        for one in kind.types:
            add_fields(one, place, fields)
    elif isinstance(kind, StructType):
        fields[place] = [field.encode_name for field in kind.fields]
        for field in kind.fields:
            add_fields(field.type, f"{place}.{field.encode_name}".removeprefix("."), fields)
    elif isinstance(kind, DictType):
        add_fields(kind.value_type, f"{place}.*", fields)
    elif isinstance(kind, VarTupleType):
        add_fields(kind.item_type, f"{place}.*", fields)


def test_tables_are_those_of_python(node: Callable[..., Any]) -> None:
    tables = node("tables.mjs", None)
    fields: dict[str, list[str]] = {}
    add_fields(type_info(Manifest), "", fields)
    assert {place: names.split() for place, names in tables.pop("FIELDS").items()} == fields
    assert tables.pop("FORMAT_VERSION") == FORMAT_VERSION
    former = {name: list(values) for name, values in manifests._FORMER.items()}
    assert tables.pop("FORMER") == former | {"parity.stepped": [None], "published.stepped": [None]}
    known = {"input": Input, "truncation_side": Side, "precision": Precision}
    assert tables.pop("VALUES") == {name: list(get_args(kind)) for name, kind in known.items()}
    usual = {field.name: field for field in msgspec.structs.fields(Manifest)}
    for name, value in tables.pop("DEFAULTS").items():
        default = usual[name].default if usual[name].default is not msgspec.NODEFAULT else usual[name].default_factory()
        assert value == msgspec.json.decode(msgspec.json.encode(default)), name
    assert tables.pop("NUMBERS") == LEAST
    assert set(tables.pop("NESTED_METHODS")) == NESTED_METHODS
    bounds = {
        name: {key: value for key, value in vars(gate).items() if np.isfinite(value)} for name, gate in GATES.items()
    }
    assert tables.pop("GATES") == bounds
    assert tables.pop("PROMPTS") == {task: list(names) for task, names in TASK_PROMPTS.items()}
    assert tables.pop("TOKEN_CHARACTERS") == TOKEN_CHARACTERS
    assert tables == {}


RANGES = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x600, 0x700), (0x900, 0x980), (0x1100, 0x1200), (0x2000, 0x2070)),
    *((0x2460, 0x2500), (0x3040, 0x3100), (0xAC00, 0xAD00), (0xFB00, 0xFB50), (0xFF00, 0xFFF0), (0x1F600, 0x1F650)),
)


def random_texts(count: int) -> list[str]:
    """Return texts of letters, marks and signs of many scripts, composed and decomposed."""
    chance = random.Random(0)
    texts = ["".join(chr(chance.randrange(*chance.choice(RANGES))) for _ in range(12)) for _ in range(count)]
    return texts + [unicodedata.normalize("NFD", text) for text in texts]


MAP = """
import base64, pathlib, sys
from transformers.utils.sentencepiece_model_pb2_new import ModelProto
model = ModelProto.FromString(pathlib.Path(sys.argv[1]).read_bytes())
print(base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode(), end="")
"""
"""Prints the map of a model of SentencePiece. Here, the module would keep transformers from reading other models."""


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_the_map_of_characters_is_applied_as_in_rust(rule: str, tmp_path: Path, node: Callable[..., Any]) -> None:
    from tokenizers.normalizers import Precompiled

    write_sentencepiece(tmp_path, "spiece.model", normalization_rule_name=rule)
    stored = python(MAP, tmp_path / "spiece.model").stdout
    content = base64.b64decode(stored)
    characters = [chr(number) for number in range(1, 0x30000) if not 0xD800 <= number < 0xE000]
    texts = [*characters, *NASTY, *sentences(50), *random_texts(3000), "a\r\nb", "ｶﾞ", "e\u0301"]
    texts = [text for text in texts if not any(0xD800 <= ord(letter) < 0xE000 for letter in text)]
    found = node("charsmap.mjs", {"map": stored, "texts": texts})
    normalizer = Precompiled(content)
    wrong = [text for text, got in zip(texts, found, strict=True) if got != normalizer.normalize_str(text)]
    assert [ascii(text) for text in wrong] == []
