"""Declare each setting of the HTTP application and of `whiten serve`, for options, files and documentation."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

from whiten_runtime.errors import UsageError, one_of

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]*)")
_LISTEN = re.compile(
    r"unix:(?P<uds>.+)|fd:(?P<fd>[0-9]{1,9})|(?:(?P<host>[^\s:\[\]]+):|\[(?P<ipv6>[^\s\[\]]+)\]:)?(?P<port>[0-9]{1,5})",
    re.DOTALL,
)


@dataclass(frozen=True)
class Measure:
    """A number that may be written with a unit, such as 500ms or 32MB."""

    noun: str  # what the help calls it
    units: Mapping[str, float]  # by their suffixes; that of a number without one is ""
    shown_in: str  # unit in which the help shows it
    example: str
    least: float
    most: float
    whole: bool = True

    def read(self, text: object) -> float:
        """Return the number that a text says."""
        match = None if isinstance(text, bool) else _NUMBER.fullmatch(str(text).strip())
        factor = self.units.get(match[2].lower()) if match else None
        number = float(match[1]) * factor if match and factor else -1.0
        if not self.least <= number <= self.most or (self.whole and number % 1):
            raise UsageError(f"{text!r} is not a number such as {self.example}, from {self.least:g} to {self.most:g}")
        return int(number) if self.whole else number

    def check(self, name: str, value: object) -> None:
        """Check a number."""
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.least <= value <= self.most:
            wanted = "a whole number" if self.whole else "a number"
            raise UsageError(f"{name} is {value!r}; wanted {wanted} from {self.least:g} to {self.most:g}")

    def shown(self, number: float) -> str:
        """Return a number as it may be written."""
        return f"{number / self.units[self.shown_in.lower()]:g}{self.shown_in}"


_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
COUNT = Measure("N", {"": 1}, "", "2048", 1, 2**40)
SIZE = Measure("SIZE", _SIZES, "MB", "1000000, 32MB or 16MiB", 1, 2**40)
SIZE_OR_0 = replace(SIZE, shown_in="GB", example="0, 8GB or 16GiB", least=0)
SECONDS = Measure(
    "SECONDS",
    {"": 1, "s": 1, "ms": 0.001, "m": 60, "h": 3600},
    "s",
    "30, 2.5, 500ms or 2m",
    0.001,
    604_800,  # a week: timers take no more than some months
    whole=False,
)
SECONDS_OR_0 = replace(SECONDS, example="0, 30, 2.5, 500ms or 2m", least=0)

SECTIONS = ("Address and keys", "Limits", "Process")
"""Headings of the options in the help, in their order."""


@dataclass(frozen=True)
class Setting:
    """Describes a setting, for the command line, the file of --config and the documentation."""

    help: str
    kind: Measure | tuple[object, ...] | None = None  # of a number; or all values; None for texts
    section: str | None = None  # heading of its option; None for a setting of the file alone
    metavar: str | None = None  # of a text
    default: str = ""  # what the default is, where its value does not say it
    secret: bool = False  # whether /info tells only that there is one
    in_file: bool = True

    def shown(self, value: Any) -> str:
        """Return a default for readers; "" for none."""
        if self.default or isinstance(value, bool):
            return self.default or ("on" if value else "off")
        return self.kind.shown(value) if isinstance(self.kind, Measure) else str(value or "")


_FORMATS, _EMPTY, _LONG, _IDS = ("text", "json", "off"), ("embed", "error"), ("truncate", "error"), ("reject", "own")

_KEYS = Setting("Keys, one of which a request must have.", default="none", secret=True, in_file=False)
_LOG = Setting(
    "Format of the log, which has a line for each request, never its texts; off leaves these lines out.",
    _FORMATS,
    "Process",
    default="text on a terminal, else json",
)
_NORMALIZE = Setting(
    "Divide vectors by their L2 norm, where a request does not say it.",
    (None, True, False),
    default="as each route's clients expect",
)
_TOKEN_IDS = Setting(
    "Token ids in place of texts: `reject`, or `own`, which takes those of the bundle's own tokenizer.", _IDS
)
_ORIGINS = Setting("Origins whose pages may read answers, a list; `*` for all.", default="none")
_HOSTS = Setting(
    "Further names by which a server on this machine without keys may be asked, a list: those in the header Host that "
    "a proxy in front sends.",
    default="localhost and its addresses",
)
_ROOT = Setting(
    "Path before all routes, such as `/whiten`, whether a gateway takes it away or leaves it.", default="none"
)


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """Settings of the HTTP application.

    Raises:
        UsageError: one cannot be used as given.
    """

    api_keys: Annotated[tuple[str, ...] | dict[str, str], _KEYS] = ()
    max_texts: Annotated[int, Setting("Texts of a request; more get 413.", COUNT, "Limits")] = 2048
    max_body: Annotated[int, Setting("Bytes of a body; more get 413.", SIZE, "Limits")] = 32_000_000
    max_in_flight: Annotated[
        int, Setting("Memory for bodies and answers of requests in progress; beyond it, 429.", SIZE, "Limits")
    ] = 256_000_000
    timeout: Annotated[
        float, Setting("Time until a request gets 504; the header x-timeout-ms shortens it.", SECONDS, "Limits")
    ] = 60.0
    log: Annotated[Literal["text", "json", "off"], _LOG] = "text"
    page: Annotated[bool, Setting("Answer browsers at / with a page to try the models.", (True, False), "Process")] = (
        True
    )
    empty: Annotated[
        Literal["embed", "error"], Setting("Empty texts: `embed`, or `error` (400, as OpenAI).", _EMPTY)
    ] = "embed"
    on_long: Annotated[
        Literal["truncate", "error"],
        Setting("Too long texts, where a request does not say it: `truncate`, or `error` (400).", _LONG),
    ] = "truncate"
    normalize: Annotated[bool | None, _NORMALIZE] = None
    token_ids: Annotated[Literal["reject", "own"], _TOKEN_IDS] = "reject"
    cors_origins: Annotated[tuple[str, ...], _ORIGINS] = ()
    root_path: Annotated[str, _ROOT] = ""

    def __post_init__(self) -> None:
        for name, _, about in declared(type(self)):
            value = getattr(self, name)
            if isinstance(about.kind, Measure):
                about.kind.check(name, value)
            elif about.kind is not None:
                one_of(name, value, about.kind)
        if not isinstance(self.root_path, str) or not re.fullmatch(r"(/[\w.~-]+)*", self.root_path):
            raise UsageError(f"root_path is {self.root_path!r}; wanted a path such as /whiten")
        for name in ("api_keys", "cors_origins"):
            values = getattr(self, name)
            kinds = (tuple, dict) if name == "api_keys" else tuple
            if not isinstance(values, kinds) or not all(isinstance(value, str) and value for value in values):
                raise UsageError(f"{name} is not a tuple (in a file, a list) of strings that are not empty")

    @classmethod
    def of(cls, named: dict[str, Any]) -> "AppSettings":
        """Return settings by name.

        Raises:
            UsageError: one is unknown, or cannot be used as given.
        """
        known = [one.name for one in fields(cls)]
        if unknown := [name for name in named if name not in known]:
            raise UsageError(f"{unknown[0]} is not an option of the application; those are {', '.join(known)}")
        return cls(**named)

    def public(self) -> dict[str, object]:
        """Return the settings by their names, as /info tells them: of keys and their files, whether there are any."""
        values = {name: (getattr(self, name), about.secret) for name, _, about in declared(type(self))}
        return {name: bool(value) if secret else value for name, (value, secret) in values.items()}


_LISTEN_ON = Setting(
    "HOST:PORT, PORT on this machine alone, [IPV6]:PORT, unix:PATH or fd:NUMBER. 0.0.0.0 is all of IPv4; of a host "
    "name, its first IPv4 address is taken; port 0 is a free one; fd:3 is systemd's socket.",
    section="Address and keys",
    metavar="ADDRESS",
)
_KEEP_ALIVE = Setting(
    "Time that a connection may be idle: longer than the proxy or balancer in front keeps its own (Google's: 600s).",
    SECONDS,
    "Address and keys",
)
_TLS = Setting(
    "PEM file with the private key and the chain of certificates, for HTTPS.",
    section="Address and keys",
    metavar="FILE",
    secret=True,
)
_KEY_FILE = Setting(
    "File of keys, one a line: KEY, NAME KEY or NAME:KEY.", section="Address and keys", metavar="FILE", secret=True
)
_DEVICE = Setting(
    "Where to compute: cpu, cuda, cuda:N, tensorrt, or PROVIDER:KEY=VALUE,... of onnxruntime.",
    section="Process",
    metavar="NAME",
    default="cpu",
)
_SOCKET_MODE = Setting("Mode of the Unix socket of `unix:PATH`, as chmod takes it.")
_SOCKET_GROUP = Setting("Group of the Unix socket of `unix:PATH`, which may connect.", default="that of the process")
_MEMORY_LIMIT = Setting(
    "Memory that texts of more than 512 tokens may take at a time on the CPU; 0 for the default.",
    SIZE_OR_0,
    default="half of the machine's, or of the cgroup's limit",
)
_DRAIN = Setting(
    "After SIGTERM, go on answering for this time while /ready is 503, so that balancers stop sending.",
    SECONDS_OR_0,
    "Process",
)


@dataclass(frozen=True, kw_only=True)
class Settings(AppSettings):
    """Settings of `whiten serve`: those of the application, and those of the process around it."""

    listen: Annotated[str, _LISTEN_ON] = "127.0.0.1:8080"
    hosts: Annotated[tuple[str, ...], _HOSTS] = ()
    keep_alive: Annotated[float, _KEEP_ALIVE] = 75.0
    tls: Annotated[str | None, _TLS] = None
    api_key_file: Annotated[str | None, _KEY_FILE] = None
    socket_mode: Annotated[str, _SOCKET_MODE] = "660"
    socket_group: Annotated[str, _SOCKET_GROUP] = ""
    max_wait: Annotated[
        float, Setting("Refuse requests (429) before which more work goes, at the measured rates.", SECONDS, "Limits")
    ] = 10.0
    device: Annotated[str | None, _DEVICE] = None
    verify: Annotated[bool, Setting("Prove each bundle's parity on this machine first.", (True, False), "Process")] = (
        True
    )
    memory_limit: Annotated[int, _MEMORY_LIMIT] = 0
    drain: Annotated[float, _DRAIN] = 5.0
    grace: Annotated[
        float, Setting("Time after the drain in which running requests may end.", SECONDS_OR_0, "Process")
    ] = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        Address.of(self.listen)
        if not isinstance(self.hosts, tuple) or not all(isinstance(name, str) and name for name in self.hosts):
            raise UsageError("hosts is not a tuple (in a file, a list) of strings that are not empty")
        if not isinstance(self.socket_mode, str) or not re.fullmatch(r"0?[0-7]{3}", self.socket_mode):
            raise UsageError(f'socket_mode is {self.socket_mode!r}; wanted a mode such as "660"')
        if not isinstance(self.socket_group, str):
            raise UsageError(f"socket_group is {self.socket_group!r}; wanted the name of a group")


def declared(kind: type[AppSettings]) -> Iterator[tuple[str, Any, Setting]]:
    """Yield the name, the default and the description of each setting."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        yield one.name, one.default, hints[one.name].__metadata__[0]


@dataclass(frozen=True)
class Address:
    """Says where to listen: at a host and port, at a Unix socket, or at a socket that is open already."""

    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    fd: int | None = None

    @classmethod
    def of(cls, text: str) -> "Address":
        """Read an address of --listen."""
        match = _LISTEN.fullmatch(text)
        if match is None or int(match["port"] or 0) > 65_535:
            raise UsageError(f"listen is {text!r}; wanted HOST:PORT, PORT, [IPV6]:PORT, unix:PATH or fd:NUMBER")
        if match["port"] is None:
            return cls(uds=match["uds"], fd=None if match["fd"] is None else int(match["fd"]))
        return cls(match["host"] or match["ipv6"] or cls.host, int(match["port"]))

    def __str__(self) -> str:
        if self.uds is not None or self.fd is not None:
            return f"unix:{self.uds}" if self.fd is None else f"fd:{self.fd}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
