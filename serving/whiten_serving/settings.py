"""Hold the options of the HTTP application and of `whiten serve`, and read the keys that requests must have."""

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from whiten_runtime.errors import DataError, UsageError, one_of, whole_number
from whiten_serving.requests import MAX_QUEUE_TOKENS

KEY_VARIABLE = "WHITEN_API_KEY"
"""Environment variable of keys, separated by commas; they hold besides those of the file."""

LONGEST = 604_800
"""Seconds of a duration at most, a week: timers take no more than some months."""

_SECRET = ("api_keys", "api_key_file", "tls_cert", "tls_key")
_KEY = re.compile(r"([\w.@-]{1,64})(?::\s*|\s+)(\S+)|([^\s:]+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]*")
_NAMED = re.compile(rf"({_NAME.pattern})=(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """Options of the HTTP application.

    Attributes:
        api_keys: keys, any of which a request must have, or a dict of keys and their clients' names; empty for none.
        cors_origins: origins whose pages may read answers, such as "https://example.org", or "*".
        max_texts: number of texts of a request at most.
        max_body: number of bytes of a body at most.
        max_text_chars: number of characters of a text at most.
        max_requests: number of requests that are worked on at once at most.
        max_in_flight: bytes of memory of their bodies, and of what is decoded of these, at most.
        timeout: seconds after which a request is given up; the header x-timeout-ms shortens it.
        token_ids: what is done with token ids in place of texts: "reject" refuses them, "own" takes them for ids of the
            bundle's own tokenizer.
        on_long: whether texts that are too long are truncated or refused, where a request does not say it.
        empty: whether an empty text is embedded or refused.
        normalize: whether vectors are divided by their norm where a request does not say it; None for what each dialect
            does.
        access_log: form of the line that is logged for each request.
        root_path: path in front of all routes, such as "/whiten", for gateways that pass it on; without it, they
            are there too.

    Raises:
        UsageError: an option cannot be used as given.
    """

    api_keys: tuple[str, ...] | dict[str, str] = ()
    cors_origins: tuple[str, ...] = ()
    max_texts: int = 2048
    max_body: int = 32_000_000
    max_text_chars: int = 1_000_000
    max_requests: int = 2048
    max_in_flight: int = 256_000_000
    timeout: float = 60.0
    token_ids: Literal["reject", "own"] = "reject"
    on_long: Literal["truncate", "error"] = "truncate"
    empty: Literal["embed", "error"] = "embed"
    normalize: bool | None = None
    access_log: Literal["text", "json", "off"] = "text"
    root_path: str = ""

    def __post_init__(self) -> None:
        for name in ("max_texts", "max_body", "max_text_chars", "max_requests", "max_in_flight"):
            whole_number(name, getattr(self, name), 1)
        timeout: object = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
            raise UsageError(f"timeout is {timeout!r}; wanted seconds greater than 0, at most {LONGEST}")
        one_of("token_ids", self.token_ids, ("reject", "own"))
        one_of("on_long", self.on_long, ("truncate", "error"))
        one_of("empty", self.empty, ("embed", "error"))
        one_of("normalize", self.normalize, (None, True, False))
        one_of("access_log", self.access_log, ("text", "json", "off"))
        if not isinstance(self.root_path, str) or not re.fullmatch(r"(/[\w.~-]+)*", self.root_path):
            raise UsageError(f"root_path is {self.root_path!r}; wanted a path such as /whiten")
        for name in ("api_keys", "cors_origins"):
            values = getattr(self, name)
            kinds = (tuple, dict) if name == "api_keys" else tuple
            if not isinstance(values, kinds) or not all(isinstance(value, str) and value for value in values):
                raise UsageError(f"{name} is not a tuple of strings that are not empty")

    @classmethod
    def of(cls, named: dict[str, Any]) -> "AppSettings":
        """Return options by name.

        Raises:
            UsageError: one is unknown, or cannot be used as given.
        """
        known = [one.name for one in fields(cls)]
        if unknown := [name for name in named if name not in known]:
            raise UsageError(f"{unknown[0]} is not an option of the application; those are {', '.join(known)}")
        return cls(**named)

    def public(self) -> dict[str, object]:
        """Return the options by their names, as /info tells them: of keys and their files, whether there are any."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: bool(value) if name in _SECRET else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Settings(AppSettings):
    """Options of `whiten serve`: those of the application, and those of the process around it."""

    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    fd: int | None = None
    threads: int | None = None
    device: str | None = None
    max_batch_tokens: int | None = None
    max_queue_tokens: int = MAX_QUEUE_TOKENS
    max_wait: float = 10.0
    api_key_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    verify: bool = True
    drain: float = 5.0
    grace: float = 30.0
    log: Literal["text", "json"] = "json"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uds is not None and self.fd is not None:
            raise UsageError("--uds and --fd were given together; choose one place to listen")
        if (self.tls_cert is None) != (self.tls_key is None):
            present, missing = ("--tls-cert", "--tls-key") if self.tls_cert else ("--tls-key", "--tls-cert")
            raise UsageError(f"{present} was given without {missing}; TLS needs both")


@dataclass(frozen=True)
class ModelChoice:
    """Names a bundle to serve: its directory, or a repository of the model hub."""

    name: str
    bundle: str


def model_choices(written: Sequence[str], warn: Callable[[str], object]) -> tuple[ModelChoice, ...]:
    """Return the models of arguments [NAME=]BUNDLE; the name is that of the directory if none is given."""
    if not written:
        raise UsageError("there is no model to serve; give a bundle, as in whiten serve bundles/minilm")
    chosen = tuple(_choice(argument, warn) for argument in written)
    names = [model.name for model in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models are called '{name}'; give them names, as in first=BUNDLE second=BUNDLE")
    return chosen


def _choice(written: str, warn: Callable[[str], object]) -> ModelChoice:
    named, is_directory = _NAMED.fullmatch(written), Path(written).is_dir()
    if named and is_directory:
        warn(f"'{written}' is a directory, and is served as one; write ./{written} to say so, or NAME={written}")
    elif named:
        return ModelChoice(named[1], named[2])
    path = Path(written.removeprefix("hf://").partition("@")[0])
    name = path.name if path.name not in ("", "..") else path.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{written}' has no name that a request can use; give one, as in model={written}")
    return ModelChoice(name, written)


def read_keys(file: str | None, environment: Mapping[str, str], warn: Callable[[str], object]) -> dict[str, str]:
    """Return the keys of the environment and of a file, each with its client's name, or ""; none if none is needed.

    A line of the file is KEY, NAME KEY or NAME:KEY: what stands before the first blank, or else before the first colon,
    is the name. The environment has keys alone, separated by commas.
    """
    written = environment.get(KEY_VARIABLE)
    keys = {key: "" for part in (written or "").split(",") if (key := part.strip())}
    if written is not None and not keys:
        raise UsageError(f"{KEY_VARIABLE} holds no key; write keys, separated by commas, or unset it")
    if file is not None:
        keys |= _in_file(Path(file), warn)
    for index, key in enumerate(keys):
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError(f"key {index + 1} of {len(keys)} has blanks or other characters that no header can hold")
    return keys


def _in_file(path: Path, warn: Callable[[str], object]) -> dict[str, str]:
    try:
        mode, lines = path.stat().st_mode, path.read_text("utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; wanted a file of keys, one a line") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text; wanted a file of keys, one a line") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.fullmatch(line.strip())
        name, key = (match[1] or "", match[2] or match[3]) if match else ("", "")
        if not key or key.startswith("#") or keys.setdefault(key, name) != name:
            wanted = "wanted KEY, NAME KEY or NAME:KEY, one name of letters, digits and ._@- for each key"
            raise DataError(f"{path}, line {number}: {wanted}")
    if not keys:
        raise DataError(f"{path}: holds no key; write one a line, or leave --api-key-file out")
    if os.name == "posix" and mode & stat.S_IROTH:
        warn(f"{path}: everybody on this machine can read the keys; run chmod 600 on it")
    return keys
