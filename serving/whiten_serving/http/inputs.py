"""Read the bodies of requests, and take their texts, or the token ids in place of texts."""

import json
import re
from collections.abc import Callable, Iterable, Sequence, Sized
from enum import Enum, EnumType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, encodable
from whiten_serving.fairness import FairExecutor
from whiten_serving.http.calls import Call
from whiten_serving.http.errors import ApiError, ClientGoneError
from whiten_serving.http.fields import FIELDS, read_fields
from whiten_serving.settings import Settings

T = TypeVar("T")
S = TypeVar("S", bound=Sized)

_TEXTS = msgspec.json.Decoder(str | list[str])
_IDS = msgspec.json.Decoder(list[int])
_LISTS_OF_IDS = msgspec.json.Decoder(list[list[int]])

_IDS_BEGIN = re.compile(rb"\s*\[\s*(\[\s*)?-?\d")
"""Beginning of a list of numbers, or of lists of numbers."""

_SHORT = 65_536
"""Bytes of an input that begins as token ids do, up to which it is looked at whether they go on so."""

_ITEM = 80
"""Bytes that an item of a list takes besides what it says: a text of two letters, or an empty list, and its place."""

_INLINE_BYTES = 131_072
"""Bytes that are decoded in the event loop's thread: it takes less than a millisecond, mostly much less."""

_BYTES = 64
"""Bytes that are decoded in the time in which a character is tokenised."""

_UNQUEUED = 100_000
"""Characters of a request at most on routes whose work no queue bounds: they take about a second."""

_REMEDY = (
    "input holds token ids, which belong to another tokenizer; send strings (LangChain: OpenAIEmbeddings("
    "check_embedding_ctx_length=False)), or let the server take ids of its own tokenizer (token-ids)"
)

_EITHER = {"anyOf": [msgspec.json.schema(kind) for kind in (str, list[str], list[int | list[int]])]}

_EXAMPLES = ["A plane is taking off.", ["A plane is taking off.", "An air plane takes off."]]

AnyValue = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"description": "Any value; it has no effect."})]
NO_VALUE = msgspec.field(default_factory=msgspec.Raw)

TextsOrIds = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_EITHER, examples=_EXAMPLES)]
"""Texts, or token ids in place of texts, as a body has them; `Inputs` reads them."""


def memory_of_body(body: bytes | bytearray) -> int:
    """Return how many bytes of memory a body and what is decoded of it take, at most, about."""
    width = 1 if body.isascii() and b"\\u" not in body else 4  # a wide character widens all of its text
    return (1 + width) * len(body) + _ITEM * body.count(b",")


async def read_body(
    receive: Callable[[], Any], call: Call, most: int, reserve: Callable[[int], object]
) -> bytes | bytearray:
    """Return the body of a request. `reserve` takes its length as it grows."""
    headers = call.headers
    encodings = headers.get(b"content-encoding")
    if encodings and {encoding.strip() for encoding in encodings.lower().split(b",")} - {b"identity", b""}:
        message = "the body is compressed (content-encoding); send it uncompressed"
        raise ApiError("unsupported_encoding", message, None, {"accept-encoding": "identity"})  # RFC 9110, 15.5.16
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > 18 or int(declared) > most:
        shown = declared[:20].decode("latin-1")
        raise ApiError("body_too_large", f"the body has {shown} bytes; the limit is {most}: send fewer texts")
    body: bytes | bytearray = b""
    call.awaited = more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part, more = message.get("body", b""), message.get("more_body", False)
        reserve(len(body) + len(part))
        if not body:
            body = part
        elif part:
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += part
        if len(body) > most:
            raise ApiError("body_too_large", f"the body has more bytes than the limit, {most}; send fewer texts")
    return body


def parse_body(
    decoder: msgspec.json.Decoder[T], body: bytes | bytearray, strict: bool = False
) -> tuple[T, Sequence[str]]:
    """Return what a body holds, and the names of its fields that were ignored; `strict` refuses them."""
    try:
        return parse(decoder, body), ()
    except ApiError:
        pass
    try:
        fields = parse(FIELDS, body)
    except ApiError as error:
        if error.code != "invalid_json" or (repaired := _repaired(body, error)) == body:
            raise
        return parse_body(decoder, repaired, strict)
    known, ignored = read_fields(decoder.type, fields, strict)
    return parse(decoder, known), ignored


def parse(decoder: msgspec.json.Decoder[T], body: bytes | bytearray | msgspec.Raw, param: str = "") -> T:
    """Return what JSON holds."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _of_validation(str(error), param, decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError("invalid_json", f"the body is not JSON ({error}); send a JSON object") from None


def _repaired(body: bytes | bytearray, error: ApiError) -> bytes:
    """Return JSON without a byte order mark, and with U+FFFD for each half of a surrogate pair; or raise the error."""
    try:
        text = json.dumps(json.loads(body.decode("utf-8-sig")), ensure_ascii=False)
    except (ValueError, RecursionError):
        raise error from None
    return encodable(text).encode()


def _of_validation(message: str, param: str, kind: Any) -> ApiError:
    """Return the answer to JSON of a wrong shape; msgspec's message ends with the place, as in "- at `$.input[3]`"."""
    what, _, place = message.partition(" - at `$")
    place = f"{param}{place}".strip("`.")
    where = f"{place}: " if place else ""
    if what.startswith("Object contains unknown field"):
        field = what.split("`")[1][:80]
        message = f"{where}field {field!r} is not one that this server understands; leave it out"
        return ApiError("unknown_field", message, field)
    if what.startswith("Object missing required field"):
        field = what.split("`")[1]
        return ApiError("invalid_type", f"{where}field {field!r} is missing", field)
    if what.startswith("Invalid enum value"):
        what += f"; wanted {', '.join(_words(get_type_hints(kind)[place.rpartition('.')[2]]))}"
    return ApiError("invalid_type", f"{where}{what[:1].lower()}{what[1:400]}", re.split(r"[.\[]", place)[0] or None)


def _words(kind: Any) -> list[str]:
    """Return the words that values of a type may be, as JSON has them."""
    if kind is bool:
        return ["true", "false"]
    if isinstance(kind, EnumType):
        return [repr(member.value) for member in list[Enum](kind)]
    return [repr(kind)] if isinstance(kind, str) else [word for part in get_args(kind) for word in _words(part)]


class Inputs:
    """Takes the texts of requests, by the options of the application."""

    def __init__(self, settings: Settings, readers: FairExecutor) -> None:
        self._settings, self._readers = settings, readers

    async def decode(self, call: Call, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function decodes of so many bytes; in another thread where they are many."""
        if size <= _INLINE_BYTES:
            return function(*arguments)
        return await self._readers.run(call.key, size // _BYTES, function, *arguments)

    async def texts(self, call: Call, raw: msgspec.Raw, encoder: Encoder, param: str) -> list[str]:
        """Return the texts of a request. Token ids are turned back into texts in another thread."""
        texts, ids = await self.decode(call, memoryview(raw).nbytes, self._texts_or_ids, raw, param)
        if ids:
            try:
                texts = await self.map_in_threads(call, lambda row: _text_of_ids(encoder, row), ids)
            except UsageError as error:
                raise ApiError("token_ids", f"{param}: {error}; send strings", param) from None
        self.check(texts, param)
        return texts

    def _texts_or_ids(self, raw: msgspec.Raw, param: str) -> tuple[list[str], list[list[int]]]:
        """Return the texts of an input, or else lists of token ids; they are counted before they take memory."""
        written = bytes(raw)
        if written == b"null":
            raise ApiError("invalid_type", f"field {param!r} is missing", param)
        self._check_count((written.count(b'"') - written.count(rb"\"")) // 2, param)
        try:
            texts = parse(_TEXTS, written, param)
        except ApiError:
            if not (begin := _IDS_BEGIN.match(written)):
                raise
        else:
            return [texts] if isinstance(texts, str) else texts, []
        rejected = ApiError("token_ids", _REMEDY.replace("input", param, 1), param)
        if self._settings.token_ids == "reject" and len(written) > _SHORT:
            raise rejected
        self._check_count(written.count(b"[") - 1, param)
        self.check_total([written.count(b",") + 1], "token ids", param)
        ids = parse(_LISTS_OF_IDS, written, param) if begin[1] else [parse(_IDS, written, param)]
        if self._settings.token_ids == "reject":
            raise rejected
        return [], ids

    def check(self, texts: Sequence[str], param: str) -> None:
        """Check texts."""
        self._check_count(len(texts), param)
        if self._settings.empty == "error" and "" in texts:
            raise ApiError("empty_text", f"{param}[{texts.index('')}] is an empty text; leave it out", param)

    async def map_in_threads(self, call: Call, function: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return what a function gives for each item, texts or token ids, in threads; no queue bounds this work."""
        sizes = [len(item) + _ITEM for item in items]
        parts = await self._readers.run_parts(call.key, sizes, lambda part: list(map(function, items[part])))
        return [result for some in parts for result in some]

    @staticmethod
    def check_total(lengths: Iterable[int], what: str, param: str) -> None:
        """Check the length of all texts together, on routes whose work no queue bounds."""
        if sum(lengths) > _UNQUEUED:
            message = f"{param} has more than {_UNQUEUED} {what}, which is the limit: send it in parts"
            raise ApiError("text_too_long", message, param)

    def _check_count(self, count: int, param: str) -> None:
        most = self._settings.max_texts
        if count > most:
            message = f"{param} has {count} texts; the limit is {most}: send several requests"
            raise ApiError("too_many_texts", message, param)


def _text_of_ids(encoder: Encoder, ids: list[int]) -> str:
    """Return the text of ids of the bundle's own tokenizer."""
    text = encoder.decode(ids)
    tokens = encoder.tokens(text)
    if ids not in ([one.id for one in tokens], [one.id for one in tokens if not one.special]):
        raise UsageError("the token ids are not what this model's tokenizer makes of their text")
    return text
