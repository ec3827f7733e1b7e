"""Declare the settings, from which options, keys of a file and their documentation follow; read keys, NAME=BUNDLE."""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from whiten_runtime.errors import DataError, UsageError, one_of
from whiten_runtime.ort.process import is_terminal

KEY_VARIABLE = "WHITEN_API_KEY"
"""Environment variable of keys, separated by commas; they hold besides those of the file."""

Address = tuple[str, int] | str | int
"""Place to listen on: a host and its port, the path of a Unix socket, or the descriptor of a socket that is open."""

_ADDRESS = re.compile(
    r"unix:(?P<uds>.+)|fd:(?P<fd>[0-9]{1,9})|(?:(?P<host>[^\s:\[\]]+):|\[(?P<ipv6>[^\s\[\]]+)\]:)?(?P<port>[0-9]{1,5})",
    re.DOTALL,
)
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]*)")
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+?)(?: \[default: (.+)\])?$", re.MULTILINE)
_KEY = re.compile(r"([\w.@-]{1,64})(?::\s*|\s+)([!-~]+)|([!-9;-~]+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]*")
_NAMED = re.compile(rf"({_NAME.pattern})=(.+)", re.DOTALL)


def parse_address(text: str) -> Address | None:
    """Return an address as text, or None if it is none."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"] or 0) > 65_535:
        return None
    if match["port"] is None:
        return match["uds"] or int(match["fd"])
    return match["host"] or match["ipv6"] or "127.0.0.1", int(match["port"])


@dataclass(frozen=True, eq=False)
class Measure:
    """A number that may be written with a unit, such as 500ms or 32MB."""

    noun: str  # what the help calls it
    units: Mapping[str, float]  # by their suffixes; that of a number without one is ""
    shown_in: str  # unit in which the help shows it
    example: str
    least: float
    most: float
    whole: bool = True

    def read(self, name: str, value: object) -> float:
        """Return a number, or that which a text says."""
        number: Any = value
        if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
            number = float(match[1]) * self.units.get(match[2].lower(), -1.0)
        if type(number) not in (int, float) or not self.least <= number <= self.most or (self.whole and number % 1):
            wanted = f"a number such as {self.example}, from {self.least:g} to {self.most:g}"
            raise UsageError(f"{name} is {value!r}; wanted {wanted}")
        return int(number) if self.whole else float(number)


@dataclass(frozen=True, eq=False)
class Text:
    """A text of some form."""

    noun: str  # what the help calls it
    wanted: str
    parse: Callable[[str], object] = re.compile(".+", re.DOTALL).fullmatch  # None for what is not of the form
    types: tuple[type, ...] = (str,)

    def read(self, name: str, value: object) -> str:
        if type(value) not in self.types or self.parse(str(value)) is None:
            raise UsageError(f"{name} is {value!r}; wanted {self.wanted}")
        return str(value)


@dataclass(frozen=True, eq=False)
class Texts:
    """Several texts, none of them empty."""

    noun: str = "LIST"
    types: Any = tuple

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, self.types) or not all(isinstance(text, str) and text for text in value):
            raise UsageError(f"{name} is not a tuple (in a file, a list) of strings that are not empty")
        return value


_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TIMES = {"": 1, "s": 1, "ms": 0.001, "m": 60, "h": 3600}
COUNT = Measure("N", {"": 1}, "", "2048", 1, 2**40)
SIZE = Measure("SIZE", _SIZES, "MB", "1000000, 32MB or 16MiB", 1, 2**40)
SECONDS = Measure("SECONDS", _TIMES, "s", "30, 2.5, 500ms or 2m", 0.001, 604_800, whole=False)  # timers take a week
SIZE_OR_0 = replace(SIZE, example="0, 8GB or 16GiB", least=0)
SECONDS_OR_0 = replace(SECONDS, example="0, 30, 2.5, 500ms or 2m", least=0)
ADDRESS = Text("ADDRESS", "HOST:PORT, PORT, [IPV6]:PORT, unix:PATH or fd:NUMBER", parse_address, (str, int))
FILE, NAME = Text("FILE", "the path of a file"), Text("NAME", "a name")
GROUP = Text("NAME", "the name of a group", str)  # "" for none
ROOT = Text("PATH", "a path such as /whiten", re.compile(r"(/[\w.~-]+)*").fullmatch)
MODE = Text("MODE", 'a mode such as "660"', re.compile("0?[0-7]{3}").fullmatch)


@dataclass(frozen=True)
class Setting:
    """Describes a setting, for the command line, the file of --config and the documentation."""

    name: str
    default: Any
    kind: Measure | Text | Texts | tuple[object, ...]  # or all values that it may have
    help: str
    says: str  # what the default is, where its value does not say it

    @property
    def key(self) -> str:
        """Return its name in a file, and of its option."""
        return self.name.replace("_", "-")

    def shown(self) -> str:
        """Return the default for readers; "" for none."""
        if isinstance(self.kind, Measure) and not self.says:
            return f"{self.default / self.kind.units[self.kind.shown_in.lower()]:g}{self.kind.shown_in}"
        return self.says or (("off", "on")[self.default] if isinstance(self.default, bool) else self.default or "")

    def check(self, value: object) -> Any:
        """Return a value as the setting has it."""
        if value is self.default:
            return value
        if not isinstance(self.kind, tuple):
            return self.kind.read(self.name, value)
        one_of(self.name, value, self.kind)
        return value


def check_known(names: Iterable[str], known: Sequence[str]) -> None:
    """Check that settings are known by their names."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"there is no setting '{name}'; {hint}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `whiten serve` and of the application. A number may also be a text with its unit, such as "32MB".

    Attributes:
        api_keys: Keys, one of which a request must have.
        max_texts: Texts of a request; more get 413.
        max_body: Bytes of a body; more get 413.
        max_in_flight: Memory for bodies and answers of requests in progress; beyond it, 429.
        timeout: Time until a request gets 504; the header x-timeout-ms shortens it.
        log: Format of the log, which has a line for each request, never its texts; off leaves these lines out.
            [default: text on a terminal, else json]
        page: Answer browsers at / with a page to try the models.
        empty: Empty texts: `embed`, or `error` (400, as OpenAI).
        on_long: Too long texts, where a request does not say it: `truncate`, or `error` (400).
        no_vector: Texts whose vectors are zeros, as a static model knows no word of them: `answer`, or `error` (400).
        strict: Refuse (400) fields that are not known, also those that change no vector.
        normalize: Divide vectors by their L2 norm, where a request does not say it.
            [default: as each route's clients expect]
        token_ids: Token ids in place of texts: `reject`, or `own`, which takes those of the bundle's own tokenizer.
        cors_origins: Origins whose pages may read answers, a list; `*` for all. [default: none]
        root_path: Path before all routes, such as `/whiten`, whether a gateway takes it away or leaves it.
            [default: none]
        listen: HOST:PORT, PORT on this machine alone, [IPV6]:PORT, unix:PATH or fd:NUMBER. 0.0.0.0 is all of IPv4; of a
            host name, its first IPv4 address is taken; port 0 is a free one; fd:3 is systemd's socket.
        metrics_listen: Another address, of the same forms, that answers /metrics, /live and /ready, without keys and
            TLS. [default: none]
        hosts: Names with dots by which a server that only this machine reaches, and that needs no key, may be asked, a
            list: those of the header Host that a proxy in front sends. [default: none]
        keep_alive: Time that a connection may be idle: longer than the proxy or balancer in front keeps its own
            (Google's: 600s).
        tls: PEM file with the private key and the chain of certificates, for HTTPS.
        api_key_file: File of keys, one a line: KEY, NAME KEY or NAME:KEY.
        parser: Parser of HTTP/1.1: `h11`, or `httptools` (pip install httptools), which answers up to a fifth more
            requests for short texts. It bounds neither heads nor pipelined requests, and loses bodies behind offers of
            h2c (Java): only for a server behind a proxy.
        socket_mode: Mode of the Unix socket of `unix:PATH`, as chmod takes it.
        socket_group: Group of the Unix socket of `unix:PATH`, which may connect. [default: that of the process]
        max_wait: Refuse requests (429) before which more work goes, at the measured rates.
        device: Where to compute: cpu, cuda, cuda:N, tensorrt, or PROVIDER:KEY=VALUE,... of onnxruntime. [default: cpu]
        verify: Prove each bundle's parity on this machine first.
        memory_limit: Memory that texts of more than 512 tokens may take at a time on the CPU; 0 for the default.
            [default: half of the machine's, or of the cgroup's limit]
        drain: After SIGTERM, go on answering for this time while /ready is 503, so that balancers stop sending.
        grace: Time after the drain in which running requests may end.

    Raises:
        UsageError: one cannot be used as given.
    """

    api_keys: tuple[str, ...] | dict[str, str] = ()
    max_texts: Annotated[int, COUNT] = 2048
    max_body: Annotated[int, SIZE] = 32_000_000
    max_in_flight: Annotated[int, SIZE] = 256_000_000
    timeout: Annotated[float, SECONDS] = 60.0
    log: Literal["text", "json", "off"] = "text"
    page: bool = True
    empty: Literal["embed", "error"] = "embed"
    on_long: Literal["truncate", "error"] = "truncate"
    no_vector: Literal["answer", "error"] = "answer"
    strict: bool = False
    normalize: bool | None = None
    token_ids: Literal["reject", "own"] = "reject"
    cors_origins: Annotated[tuple[str, ...], Texts()] = ()
    root_path: Annotated[str, ROOT] = ""
    listen: Annotated[str, ADDRESS] = "127.0.0.1:8080"
    metrics_listen: Annotated[str | None, ADDRESS] = None
    hosts: Annotated[tuple[str, ...], Texts()] = ()
    keep_alive: Annotated[float, SECONDS] = 75.0
    tls: Annotated[str | None, FILE] = None
    api_key_file: Annotated[str | None, FILE] = None
    parser: Literal["h11", "httptools"] = "h11"
    socket_mode: Annotated[str, MODE] = "660"
    socket_group: Annotated[str, GROUP] = ""
    max_wait: Annotated[float, SECONDS] = 10.0
    device: Annotated[str | None, NAME] = None
    verify: bool = True
    memory_limit: Annotated[int, SIZE_OR_0] = 0
    drain: Annotated[float, SECONDS_OR_0] = 5.0
    grace: Annotated[float, SECONDS_OR_0] = 30.0
    mounted: bool = field(default=False, compare=False)  # by another process, to which listen and others belong

    def __post_init__(self) -> None:
        Texts(types=(tuple, dict)).read("api_keys", self.api_keys)
        for setting in SETTINGS.values():
            object.__setattr__(self, setting.name, setting.check(getattr(self, setting.name)))

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> Self:
        """Return the settings of an application that another process serves."""
        check_known(named, ["api_keys", *OF_APPLICATION])
        return cls(**named, mounted=True)

    def public(self) -> dict[str, object]:
        """Return the settings by their names, as /info tells them: of keys and their files, whether there are any."""
        names, secret = OF_APPLICATION if self.mounted else SETTINGS, ("api_keys", "api_key_file", "tls")
        values = {name: getattr(self, name) for name in ("api_keys", *names)}
        return {name: bool(value) if name in secret else value for name, value in values.items()}


def _declared() -> dict[str, Setting]:
    lines = re.sub(r"\n {8}", " ", cleandoc(Settings.__doc__ or ""))  # none where Python leaves docstrings out
    helps = {name: (text, says) for name, text, says in _ATTRIBUTE.findall(lines)}
    hints = get_type_hints(Settings, include_extras=True)
    switches: dict[object, tuple[object, ...]] = {bool: (True, False), bool | None: (None, True, False)}
    settings = {}
    for attribute in fields(Settings):
        name = attribute.name
        if name not in ("api_keys", "mounted"):
            values = switches.get(hints[name]) or get_args(hints[name])
            kind = getattr(hints[name], "__metadata__", (values,))[0]
            settings[name] = Setting(name, attribute.default, kind, *helps.get(name, ("", "")))
    return settings


SETTINGS = _declared()
"""The settings that a file may have, by their names."""

OF_APPLICATION = (
    *("max_texts", "max_body", "max_in_flight", "timeout", "log", "page", "empty", "on_long", "no_vector", "strict"),
    *("normalize", "token_ids", "cors_origins", "root_path"),
)
"""Settings of the application; the others are of the process of `whiten serve`."""


def usual_format() -> Literal["text", "json"]:
    """Return the format of the log where none is asked for."""
    return "text" if is_terminal(sys.stderr) else "json"


def read_models(written: Sequence[str], warn: Callable[[str], object]) -> dict[str, str]:
    """Return the bundles of arguments [NAME=]BUNDLE by name, which is that of the directory if none is given."""
    if not written:
        raise UsageError("there is no model to serve; give a bundle, as in whiten serve bundles/minilm")
    models: dict[str, str] = {}
    for argument in written:
        name, bundle = _named(argument, warn)
        if name in models:
            raise UsageError(f"two models are called '{name}'; give them names, as in first=BUNDLE second=BUNDLE")
        models[name] = bundle
    return models


def names_of_bundles(models: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the bundles, each with the names by which it is served: a directory may be written in several ways."""
    names: dict[str, list[str]] = {}
    bundles: dict[str, str] = {}
    for name, bundle in models.items():
        path = Path(bundle)
        place = str(path.absolute()) if path.is_dir() else bundle
        names.setdefault(bundles.setdefault(place, bundle), []).append(name)
    return names


def _named(written: str, warn: Callable[[str], object]) -> tuple[str, str]:
    match = _NAMED.fullmatch(written)
    if match and not Path(written).is_dir():
        return match[1], match[2]
    if match:
        warn(f"'{written}' is a directory, and is served as one; write ./{written} to say so, or NAME={written}")
    path = Path(written.removeprefix("hf://").partition("@")[0])
    name = path.name if path.name not in ("", "..") else path.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{written}' has no name that a request can use; give one, as in model={written}")
    return name, written


def read_keys(file: str | None, environment: Mapping[str, str], warn: Callable[[str], object]) -> dict[str, str]:
    """Return the keys of the environment and of a file, each with its client's name, or ""; none if none is needed.

    A line of the file is KEY, NAME KEY or NAME:KEY: what stands before the first blank, or else before the first colon,
    is the name. The environment has keys alone, separated by commas.
    """
    written = environment.get(KEY_VARIABLE)
    keys = {key: "" for part in (written or "").split(",") if (key := part.strip())}
    if written is not None and not (keys and all(re.fullmatch("[!-~]+", key) for key in keys)):
        wanted = "write keys of ASCII without blanks, separated by commas, or unset it"
        raise UsageError(f"{KEY_VARIABLE} holds no key, or one that no header can hold; {wanted}")
    return keys if file is None else keys | _keys_of(Path(file), warn)


def _keys_of(path: Path, warn: Callable[[str], object]) -> dict[str, str]:
    try:
        mode, lines = path.stat().st_mode, path.read_text("utf-8").split("\n")
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
