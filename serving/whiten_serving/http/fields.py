"""Read the fields of a request that its route does not have: take what changes no vector, refuse what could."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, get_args

import msgspec

from whiten_serving.http.errors import ApiError

_LONGEST = 64
"""Characters of a name, and bytes of a value, that are looked at."""

_MOST = 100
"""Fields without a meaning that a request may have."""

FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_SYNONYMS = {
    **dict.fromkeys(("dimension", "dimensionality", "outputdimension", "outputdimensionality"), "dimensions"),
    **dict.fromkeys(("normalized", "normalizeembeddings"), "normalize"),
    **dict.fromkeys(("truncation", "autotruncate"), "truncate"),
    **dict.fromkeys(("instruction", "prefix"), "prompt"),
    **dict.fromkeys(("task", "tasktype", "texttype"), "input_type"),
}
"""Names that other servers have for fields of ours, in small letters."""

_TEXTS = frozenset(
    {
        *("input", "inputs", "prompt", "text", "texts", "messages", "content", "contents", "sentence", "sentences"),
        *("document", "documents", "query", "queries", "title", "system"),
    }
)
"""Names under which other servers take texts, or parts of them."""

_CHANGES = frozenset(
    {
        *(
            "dimensions",
            "dim",
            "dims",
            "embeddingdimension",
            "embeddingsize",
            "vectorsize",
            "truncatedim",
            "matryoshkadim",
        ),
        *("normalize", "normalise", "normalization", "embdnormalize", "activation", "useactivation", "softmax"),
        *("prompts", "prompttemplate", "promptname", "instructions", "instruct", "queryprefix", "role"),
        *("queryinstruction", "inputtype", "isquery", "truncate"),
        *("embeddingtype", "embeddingtypes", "outputdtype", "outputtype", "encodingformat", "encodingtype"),
        *("embeddtype", "dtype", "precision", "quantization", "quantize", "endianness", "bits"),
        *("pooling", "poolingtype", "poolingmethod", "poolingmode", "poolingstrategy", "layer", "layers"),
        *("latechunking", "passages", "chunking", "chunksize", "chunkoverlap", "truncationside", "truncationstrategy"),
        *("truncationdirection", "truncateprompttokens", "maxtokens", "maxlength", "maxseqlength", "maxinputlength"),
        *("numctx", "addspecialtokens", "addeos", "addbos", "returnsparse", "returndense", "returncolbertvecs"),
        *("sparse", "multivector", "returnmultivector", "returnlogits", "longtextmode", "whitening"),
        *("modality", "modalities", "image", "images", "audio", "video"),
        *("lora", "loraid", "adapter", "adapterid", "revision", "stream"),
    }
)
"""Names of fields, in small letters, that change vectors or the answer, here or in the servers that have them."""

_CONTAINERS = frozenset(
    {
        *("parameters", "params", "options", "config", "kwargs", "modelkwargs", "encodekwargs", "body"),
        *("extra", "extrabody", "extraparams", "additionalparams", "additionalmodelrequestfields"),
    }
)
"""Names of objects in which clients put such fields."""

_NUMBERS = (b'"float"', b'"float32"', b'["float"]', b'["float32"]')
_NEUTRAL: dict[str, tuple[bytes, ...]] = {
    **dict.fromkeys(("embeddingtype", "embeddingtypes", "outputdtype", "outputtype", "embeddtype", "dtype"), _NUMBERS),
    **dict.fromkeys(("encodingformat", "encodingtype", "precision"), _NUMBERS),
    **dict.fromkeys(("latechunking", "returnsparse", "returncolbertvecs", "sparse"), (b"false",)),
    **dict.fromkeys(("multivector", "stream"), (b"false",)),
    **dict.fromkeys(("addspecialtokens", "returndense"), (b"true",)),
    "endianness": (b'"native"', b'"little"'),
    "modality": (b'"text"',),
    "truncateprompttokens": (b"-1",),
}
"""Values of such fields, as JSON, that say what is the case anyway."""


def read_fields(kind: Any, fields: Mapping[str, msgspec.Raw], strict: bool) -> tuple[bytes, list[str]]:
    """Return a body with those fields that a struct has, and the names of others, which change nothing.

    Raises:
        ApiError: a field could change vectors, or any is unknown where `strict` is set.
    """
    ignored: list[str] = []
    texts = next((name for name in ("input", "inputs", "prompt") if name in kind.__struct_fields__), None)
    known = _known(kind, fields, "", texts, ignored)
    if texts not in (None, *known) and "prompt" in known:
        written = next(name for name in fields if _SYNONYMS.get(letters_of(name), name) == "prompt")
        raise _unknown(written, f"the texts belong in {texts!r}")
    if strict and ignored:
        raise _unknown(ignored[0], "leave it out")
    return msgspec.json.encode(known), ignored


def _known(
    kind: Any, fields: Mapping[str, msgspec.Raw], place: str, texts: str | None, ignored: list[str]
) -> dict[str, Any]:
    """Return the fields of a struct, which is at a place of the body whose texts are in a field, if it has any."""
    types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    known: dict[str, Any] = {}
    fields = {name: raw for name, raw in fields.items() if bytes(memoryview(raw)[:_LONGEST]) != b"null"}
    for name, raw in fields.items():
        value = bytes(memoryview(raw)[:_LONGEST])
        if name not in types:
            name = name[:_LONGEST]
            synonym = _SYNONYMS.get(letters_of(name))
            if synonym in types and synonym != texts:
                if synonym in fields.keys() | known.keys():
                    raise _unknown(place + name, f"it is {synonym!r}, which the request has too: leave one out")
                known[synonym] = raw
            elif texts is None or not _says_nothing_new(place + name, raw, types, texts):
                if texts is not None and letters_of(name) in _CONTAINERS and value[:1] == b"{":
                    _check_container(place + name, FIELDS.decode(raw), types, texts)
                ignored.append(place + name)
                _check_count(name, len(ignored))
        elif value[:1] == b"{" and (nested := _struct(types[name])):
            known[name] = _known(nested, FIELDS.decode(raw), f"{place}{name}.", texts, ignored)
        else:
            known[name] = raw
    return known


def letters_of(name: str) -> str:
    """Return the letters of a name, small: clients spell one name in several ways."""
    return re.sub("[^a-z]", "", name.lower())


def _check_container(name: str, fields: Mapping[str, msgspec.Raw], types: Collection[str], texts: str) -> None:
    """Check that no field of an unknown object could change a vector."""
    _check_count(name, len(fields))
    for key, raw in fields.items():
        _says_nothing_new(f"{name}.{key[:_LONGEST]}", raw, types, texts)


def _check_count(name: str, count: int) -> None:
    """Check a number of unknown fields: each is compared with all that could change a vector."""
    if count > _MOST:
        raise _unknown(name, f"nor are {_MOST} others; leave them out")


def _says_nothing_new(name: str, raw: msgspec.Raw, types: Collection[str], texts: str) -> bool:
    """Return whether an unknown field says what is the case anyway; refuse it if it could change a vector."""
    plain, value = letters_of(name.rpartition(".")[2]), bytes(memoryview(raw)[:_LONGEST])
    if value.replace(b" ", b"") in (b"null", *_NEUTRAL.get(plain, ())):
        return True
    if plain in _TEXTS and texts in types:
        raise _unknown(name, f"the texts belong in {texts!r}")
    if near := get_close_matches(name.lower(), types, 1, 0.85):
        raise _unknown(name, f"did you mean {near[0]!r}?")
    if plain == "latechunking" and "passages" in types:
        raise _unknown(name, "send the text as 'input', and its 'passages'")
    if plain in _SYNONYMS or plain in _TEXTS or get_close_matches(plain, _CHANGES, 1, 0.85):
        raise _unknown(name, "it could change the vectors; leave it out")
    return False


def _struct(kind: Any) -> Any:
    """Return the struct that values of a type may be; None if there is none."""
    kinds = (kind, *get_args(kind))
    return next((part for part in kinds if isinstance(part, type) and issubclass(part, msgspec.Struct)), None)


def _unknown(name: str, advice: str) -> ApiError:
    message = f"field {name[:80]!r} is not one that this server understands; {advice}"
    return ApiError("unknown_field", message, name.rpartition(".")[2][:80])
