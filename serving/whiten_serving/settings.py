"""Declare the settings, from which options, environment variables, keys of a file and their documentation follow."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from inspect import cleandoc
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from whiten_runtime.errors import UsageError, one_of

_LISTEN = re.compile(
    r"unix:(?P<uds>.+)|fd:(?P<fd>[0-9]{1,9})|(?:(?P<host>[^\s:\[\]]+):|\[(?P<ipv6>[^\s\[\]]+)\]:)?(?P<port>[0-9]{1,5})",
    re.DOTALL,
)
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]*)")
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+?)(?: \[default: (.+)\])?$", re.MULTILINE)


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


_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TIMES = {"": 1, "s": 1, "ms": 0.001, "m": 60, "h": 3600}
COUNT = Measure("N", {"": 1}, "", "2048", 1, 2**40)
SIZE = Measure("SIZE", _SIZES, "MB", "1000000, 32MB or 16MiB", 1, 2**40)
SECONDS = Measure("SECONDS", _TIMES, "s", "30, 2.5, 500ms or 2m", 0.001, 604_800, whole=False)  # timers take a week
SIZE_OR_0 = replace(SIZE, example="0, 8GB or 16GiB", least=0)
SECONDS_OR_0 = replace(SECONDS, example="0, 30, 2.5, 500ms or 2m", least=0)


@dataclass(frozen=True)
class Setting:
    """Describes a setting, for the command line, the file of --config and the documentation."""

    name: str
    default: Any
    help: str
    says: str  # what the default is, where its value does not say it
    kind: Measure | str | None  # of a number; or what the help calls a text
    values: tuple[object, ...]  # all that it may be; none for a number or a text

    @property
    def key(self) -> str:
        """Return its name in a file, and of its option."""
        return self.name.replace("_", "-")

    def shown(self) -> str:
        """Return the default for readers; "" for none."""
        if isinstance(self.kind, Measure) and not self.says:
            return f"{self.default / self.kind.units[self.kind.shown_in.lower()]:g}{self.kind.shown_in}"
        return self.says or (("off", "on")[self.default] if isinstance(self.default, bool) else self.default or "")


def declared(kind: "type[AppSettings]") -> list[Setting]:
    """Return the settings that a file may have; what the docstrings say of each is its help."""
    hints = get_type_hints(kind, include_extras=True)
    lines = "\n".join(re.sub(r"\n {8}", " ", cleandoc(base.__doc__ or "")) for base in kind.__mro__)
    helps = {name: (text, says) for name, text, says in _ATTRIBUTE.findall(lines)}
    switches: dict[object, tuple[object, ...]] = {bool: (True, False), bool | None: (None, True, False)}
    settings = []
    for field in fields(kind):
        if field.name != "api_keys":
            hint = hints[field.name]
            values = get_args(hint) if get_origin(hint) is Literal else switches.get(hint, ())
            noted = getattr(hint, "__metadata__", (None,))[0]
            settings.append(Setting(field.name, field.default, *helps.get(field.name, ("", "")), noted, values))
    return settings


def check_known(names: Iterable[str], known: Sequence[str]) -> None:
    """Check that settings are known by their names."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"there is no setting '{name}'; {hint}")


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """Settings of the HTTP application. A number may also be a text with its unit, such as "32MB".

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
    cors_origins: tuple[str, ...] = ()
    root_path: str = ""

    def __post_init__(self) -> None:
        for setting in declared(type(self)):
            value = getattr(self, setting.name)
            if isinstance(setting.kind, Measure):
                object.__setattr__(self, setting.name, setting.kind.read(setting.name, value))
            elif setting.values:
                one_of(setting.name, value, setting.values)
        if not isinstance(self.root_path, str) or not re.fullmatch(r"(/[\w.~-]+)*", self.root_path):
            raise UsageError(f"root_path is {self.root_path!r}; wanted a path such as /whiten")
        for name, kinds in (("api_keys", (tuple, dict)), ("cors_origins", (tuple,)), ("hosts", (tuple,))):
            values = getattr(self, name, ())
            if not isinstance(values, kinds) or not all(isinstance(value, str) and value for value in values):
                raise UsageError(f"{name} is not a tuple (in a file, a list) of strings that are not empty")

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> Self:
        """Return settings by name."""
        check_known(named, [field.name for field in fields(cls)])
        return cls(**named)

    def public(self) -> dict[str, object]:
        """Return the settings by their names, as /info tells them: of keys and their files, whether there are any."""
        secret = "api_keys", "api_key_file", "tls"
        return {name: bool(value) if name in secret else value for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True)
class Settings(AppSettings):
    """Settings of `whiten serve`: those of the application, and those of the process around it.

    Attributes:
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
    """

    listen: Annotated[str, "ADDRESS"] = "127.0.0.1:8080"
    metrics_listen: Annotated[str | None, "ADDRESS"] = None
    hosts: tuple[str, ...] = ()
    keep_alive: Annotated[float, SECONDS] = 75.0
    tls: Annotated[str | None, "FILE"] = None
    api_key_file: Annotated[str | None, "FILE"] = None
    parser: Literal["h11", "httptools"] = "h11"
    socket_mode: str = "660"
    socket_group: str = ""
    max_wait: Annotated[float, SECONDS] = 10.0
    device: Annotated[str | None, "NAME"] = None
    verify: bool = True
    memory_limit: Annotated[int, SIZE_OR_0] = 0
    drain: Annotated[float, SECONDS_OR_0] = 5.0
    grace: Annotated[float, SECONDS_OR_0] = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        Address.of(self.listen)
        if self.metrics_listen is not None:
            Address.of(self.metrics_listen, "metrics_listen")
        if not isinstance(self.socket_mode, str) or not re.fullmatch(r"0?[0-7]{3}", self.socket_mode):
            raise UsageError(f'socket_mode is {self.socket_mode!r}; wanted a mode such as "660"')
        if not isinstance(self.socket_group, str):
            raise UsageError(f"socket_group is {self.socket_group!r}; wanted the name of a group")


@dataclass(frozen=True)
class Address:
    """Says where to listen: at a host and port, at a Unix socket, or at a socket that is open already."""

    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    fd: int | None = None

    @classmethod
    def of(cls, text: str, name: str = "listen") -> "Address":
        """Read an address of --listen, or of another setting."""
        match = _LISTEN.fullmatch(text)
        if match is None or int(match["port"] or 0) > 65_535:
            raise UsageError(f"{name} is {text!r}; wanted HOST:PORT, PORT, [IPV6]:PORT, unix:PATH or fd:NUMBER")
        if match["port"] is None:
            return cls(uds=match["uds"], fd=None if match["fd"] is None else int(match["fd"]))
        return cls(match["host"] or match["ipv6"] or cls.host, int(match["port"]))

    def __str__(self) -> str:
        if self.uds is not None or self.fd is not None:
            return f"unix:{self.uds}" if self.fd is None else f"fd:{self.fd}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
