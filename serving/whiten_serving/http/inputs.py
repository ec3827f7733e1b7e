"""Check the texts of a request, and turn token ids back into texts where the operator allows it."""

from collections.abc import Iterable, Sequence
from typing import Any

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError
from whiten_serving.http.call import Call
from whiten_serving.http.errors import ApiError
from whiten_serving.http.options import HttpOptions
from whiten_serving.http.tiktoken_file import TiktokenFile
from whiten_serving.http.workers import Workers

Input = str | list[str | int | list[int]]
"""Type of the texts of a request: one text or several; or the token ids of one or several."""

_UNQUEUED = 100_000
"""Characters or token ids of a request at most on routes whose work no queue bounds: they take about a second."""

_REMEDY = (
    "input holds token ids, which belong to another tokenizer; send strings (LangChain: OpenAIEmbeddings("
    "check_embedding_ctx_length=False)), or start the server with --token-ids"
)


class Inputs:
    """Checks what requests hold, by the options of the application.

    Args:
        options: bounds, and what is done with token ids and empty texts.
        workers: threads in which token ids are turned back into texts.
        before: what checked them so far, whose file of token ids is kept if it is still the same.

    Raises:
        DataError: the file of token ids cannot be read.
    """

    def __init__(self, options: HttpOptions, workers: Workers, before: "Inputs | None" = None) -> None:
        self._options, self._workers = options, workers
        self._file: TiktokenFile | None = TiktokenFile.opened(
            options.token_file, before._file if before is not None else None
        )

    async def texts(self, call: Call, given: Input, encoder: Encoder, param: str) -> list[str]:
        """Return the texts of a request. Token ids are turned back in another thread.

        Args:
            call: the request.
            given: one text or several, or token ids.
            encoder: the encoder that embeds them, whose tokenizer may have made the ids.
            param: name of the field, for the message.

        Raises:
            ApiError: there are too many, one is too long or empty, or they are token ids and cannot be taken.
            ClientGoneError: the caller has gone.
        """
        items: Sequence[Any] = [given] if isinstance(given, str) else given
        if items and isinstance(items[0], int) and not isinstance(items[0], bool):
            items = [items]
        self.check_count(len(items), param)
        if all(type(item) is str for item in items):
            texts = list(items)
        else:
            texts = await self._of_ids(call, items, encoder, param)
        self.check(texts, param)
        return texts

    async def _of_ids(self, call: Call, items: Sequence[object], encoder: Encoder, param: str) -> list[str]:
        return await self._workers.map(
            call, lambda one: self._text(one[1], encoder, f"{param}[{one[0]}]", param), list(enumerate(items))
        )

    def check_count(self, count: int, param: str) -> None:
        """Check the number of texts.

        Raises:
            ApiError: there are too many.
        """
        if count > self._options.max_texts:
            most = self._options.max_texts
            raise ApiError(
                "too_many_texts", f"{param} holds {count} texts, and {most} may; send several requests", param
            )

    def check(self, texts: Sequence[str], param: str) -> None:
        """Check texts.

        Raises:
            ApiError: one is too long, or empty where that is refused.
        """
        most = self._options.max_text_chars
        for index, text in enumerate(texts):
            if len(text) > most:
                message = f"{param}[{index}] has {len(text)} characters, and {most} may; send it in parts"
                raise ApiError("text_too_long", message, param)
            if not text and self._options.empty == "error":
                raise ApiError("empty_text", f"{param}[{index}] is an empty text; leave it out", param)

    def check_total(self, lengths: Iterable[int], what: str, param: str) -> None:
        """Check the length of all texts together, on routes whose work no queue bounds.

        Args:
            lengths: length of each text.
            what: what is counted, for the message.
            param: name of the field, for the message.

        Raises:
            ApiError: they are too long.
        """
        total, most = sum(lengths), min(self._options.max_text_chars, _UNQUEUED)
        if total > most:
            raise ApiError("text_too_long", f"{param} holds {total} {what}, and {most} may; send it in parts", param)

    def _text(self, item: object, encoder: Encoder, where: str, param: str) -> str:
        if not isinstance(item, list) or not all(type(one) is int for one in item):
            raise ApiError("invalid_type", f"{where}: expected texts alone, or lists of token ids alone", param)
        if self._options.token_ids == "reject":
            raise ApiError("token_ids", _REMEDY, param)
        if len(item) > self._options.max_text_chars:
            most = self._options.max_text_chars
            raise ApiError("text_too_long", f"{where} holds {len(item)} token ids, and {most} may", param)
        try:
            return _decoded(encoder, item) if self._file is None else self._file.decode(item)
        except UsageError as error:
            raise ApiError("token_ids", f"{where}: {error}; send strings", param) from None


def _decoded(encoder: Encoder, ids: list[int]) -> str:
    """Return the text of ids of the bundle's own tokenizer.

    Raises:
        UsageError: they are not what the tokenizer makes of that text, so its vector would be another's.
    """
    text = encoder.decode(ids)
    tokens = encoder.tokens(text)
    if ids not in ([one.id for one in tokens], [one.id for one in tokens if not one.special]):
        raise UsageError("the token ids are not what this model's tokenizer makes of their text")
    return text
