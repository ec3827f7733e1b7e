"""Hold the options of the HTTP application."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from whiten_runtime.checks import one_of, whole_number
from whiten_runtime.errors import UsageError

TokenIds = Literal["reject", "own", "cl100k"]
OnLong = Literal["truncate", "error"]
OnEmpty = Literal["embed", "error"]
AccessLog = Literal["text", "json", "off"]

LONGEST = 604_800
"""Seconds of a duration at most, a week: timers take no more than some months."""


@dataclass(frozen=True)
class HttpOptions:
    """Holds the options of the HTTP application.

    Attributes:
        api_keys: keys, any of which a request must have; empty for none.
        metrics_need_key: whether /metrics needs a key too, if there are keys.
        cors_origins: origins whose pages may read answers, such as "https://example.org", or "*".
        max_texts: number of texts of a request at most.
        max_body: number of bytes of a body at most.
        max_waiting_body: number of bytes at most of all bodies that are being read or whose requests are not answered
            yet; a body of 16,384 bytes is always read.
        max_text_chars: number of characters of a text at most.
        max_headers: number of bytes of all headers at most.
        body_timeout: seconds in which a body must be there.
        timeout: seconds after which a request is given up; the header x-timeout-ms shortens it.
        token_ids: what is done with token ids in place of texts: "reject" refuses them, "own" takes them for ids of the
            bundle's own tokenizer, "cl100k" for ids of OpenAI's, whose file is `token_file`.
        token_file: file of ranks in tiktoken's format, for "cl100k".
        on_long: whether texts that are too long are truncated or refused, where a request does not say it.
        empty: whether an empty text is embedded or refused.
        normalize: whether vectors are divided by their norm where a request does not say it; None for what each dialect
            does.
        access_log: form of the line that is logged for each request.

    Raises:
        UsageError: an option cannot be used as given.
    """

    api_keys: tuple[str, ...] = ()
    metrics_need_key: bool = False
    cors_origins: tuple[str, ...] = ()
    max_texts: int = 2048
    max_body: int = 32_000_000
    max_waiting_body: int = 64_000_000
    max_text_chars: int = 1_000_000
    max_headers: int = 32_768
    body_timeout: float = 30.0
    timeout: float = 60.0
    token_ids: TokenIds = "reject"
    token_file: Path | None = None
    on_long: OnLong = "truncate"
    empty: OnEmpty = "embed"
    normalize: bool | None = None
    access_log: AccessLog = "text"

    def __post_init__(self) -> None:
        for name in ("max_texts", "max_body", "max_waiting_body", "max_text_chars", "max_headers"):
            whole_number(name, getattr(self, name), 1)
        for name in ("body_timeout", "timeout"):
            _check_seconds(name, getattr(self, name))
        if self.max_waiting_body < self.max_body:
            message = f"max_waiting_body is {self.max_waiting_body}, less than max_body, {self.max_body}; give it more"
            raise UsageError(message)
        one_of("token_ids", self.token_ids, ("reject", "own", "cl100k"))
        one_of("on_long", self.on_long, ("truncate", "error"))
        one_of("empty", self.empty, ("embed", "error"))
        one_of("normalize", self.normalize, (None, True, False))
        one_of("access_log", self.access_log, ("text", "json", "off"))
        _check_strings("api_keys", self.api_keys)
        _check_strings("cors_origins", self.cors_origins)
        if (self.token_ids == "cl100k") != (self.token_file is not None):
            raise UsageError("token_ids 'cl100k' needs token_file, tiktoken's cl100k_base.tiktoken; give both or none")

    @classmethod
    def of(cls, named: dict[str, Any]) -> "HttpOptions":
        """Return options by name.

        Raises:
            UsageError: one is unknown, or cannot be used as given.
        """
        known = [one.name for one in fields(cls)]
        if unknown := [name for name in named if name not in known]:
            raise UsageError(f"{unknown[0]} is not an option of the application; those are {', '.join(known)}")
        return cls(**named)

    def told(self) -> dict[str, object]:
        """Return the options by their names, as /info tells them: of keys and files, whether there are any."""
        secret = {"api_keys": bool(self.api_keys), "token_file": self.token_file is not None}
        return {one.name: secret.get(one.name, getattr(self, one.name)) for one in fields(self)}


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST:
        raise UsageError(f"{name} is {value!r}; wanted seconds greater than 0, at most {LONGEST}")


def _check_strings(name: str, values: object) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, str) and value for value in values):
        raise UsageError(f"{name} is not a tuple of strings that are not empty")
