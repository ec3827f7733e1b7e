"""Hold the table of options: `Settings`, each of whose fields is one option of `whiten serve`."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from whiten_serving.batching.bounds import MAX_QUEUE_TOKENS
from whiten_serving.http.options import HttpOptions
from whiten_serving.settings.kinds import Kind, choice, flag, origin, seconds, size, text, whole

PREFIX = "WHITEN_SERVE_"
"""What the environment variables of options begin with."""


@dataclass(frozen=True)
class Option:
    """Describes one option.

    Attributes:
        name: name of the field.
        group: what it is about, for the docs.
        kind: kind of its values.
        default: value if it is given nowhere.
        help: what it does, as sentences.
        shown: how help and docs write the default.
        told: whether /info tells the value, rather than whether there is one.
    """

    name: str
    group: str
    kind: Kind
    default: Any
    help: str
    shown: str
    told: bool = True

    @property
    def key(self) -> str:
        """Return its key in a file of TOML, and its name on the command line without the dashes."""
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        """Return its name on the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Return the name of its environment variable."""
        return PREFIX + self.name.upper()


def _option(group: str, kind: Kind, default: Any, help: str, shown: str | None = None, *, told: bool = True) -> Any:
    written = kind.write(default) if shown is None else shown
    about = {"group": group, "kind": kind, "help": help, "shown": written, "told": told}
    return field(default=default, metadata=about)


_ADDRESS, _ACCESS, _QUEUE, _LIMITS = "Address", "Access", "Models and queue", "Limits"
_TEXTS, _LIFE, _LOGS = "Texts and vectors", "Starting and stopping", "Logs"


@dataclass(frozen=True)
class Settings:
    """Holds the value of every option of `whiten serve`. Its fields are the table that all else is made from."""

    host: str = _option(_ADDRESS, text("HOST"), "127.0.0.1", "Address to listen on; 0.0.0.0 for all of IPv4.")
    port: int = _option(_ADDRESS, whole(0, 65535), 8080, "Port to listen on; 0 for a free one.")
    uds: str | None = _option(
        _ADDRESS,
        text("PATH"),
        None,
        "Unix socket to listen on, in place of a port; its owner and group may connect.",
        "",
    )
    fd: int | None = _option(
        _ADDRESS, whole(0), None, "Descriptor of a socket that listens already; 3 under systemd's socket units.", ""
    )

    threads: int | None = _option(_QUEUE, whole(1), None, "Threads.", "all usable CPUs")
    device: str | None = _option(
        _QUEUE, text("DEVICE"), None, "Device: cpu, cuda, cuda:N, openvino or openvino:bf16.", "cpu"
    )
    max_batch_tokens: int | None = _option(
        _QUEUE, whole(1), None, "Padded tokens of a batch at most.", "as Encoder.encode"
    )
    max_queue_tokens: int = _option(
        _QUEUE, whole(1), MAX_QUEUE_TOKENS, "Tokens that may wait; more is answered with 429."
    )
    max_wait: float = _option(
        _QUEUE,
        seconds(0.001),
        10.0,
        "Work that may wait, in seconds at the measured rate; more is answered with 429.",
        "10 s",
    )

    max_texts: int = _option(_LIMITS, whole(1), HttpOptions.max_texts, "Texts of a request at most.")
    max_body: int = _option(_LIMITS, size(), HttpOptions.max_body, "Bytes of a request's body at most.")
    max_waiting_body: int = _option(
        _LIMITS,
        size(),
        HttpOptions.max_waiting_body,
        "Bytes of all bodies that are read or whose requests wait; more is answered with 429. At least --max-body.",
    )
    max_text_chars: int = _option(_LIMITS, whole(1), HttpOptions.max_text_chars, "Characters of a text at most.")
    timeout: float = _option(
        _LIMITS,
        seconds(0.001),
        HttpOptions.timeout,
        "Time until a request is answered with 504; x-timeout-ms shortens it.",
    )
    max_connections: int = _option(
        _LIMITS, whole(1), 8192, "Connections at most, or as many as the limit of open files allows, if that is fewer."
    )
    max_headers: int = _option(
        _LIMITS, size(1024), HttpOptions.max_headers, "Bytes of a request's line and headers at most."
    )
    header_timeout: float = _option(
        _LIMITS,
        seconds(0.001),
        10.0,
        "Time in which the headers of a request must arrive, and TLS be agreed on before.",
        "10 s",
    )
    body_timeout: float = _option(
        _LIMITS,
        seconds(0.001),
        HttpOptions.body_timeout,
        "Time in which a body must arrive, and in which a client must take some of its answer.",
    )
    keep_alive: float = _option(
        _LIMITS, seconds(), 75.0, "Time that a connection may be idle; more than that of proxies before it.", "75 s"
    )

    token_ids: str = _option(
        _TEXTS,
        Kind("reject|own|cl100k=FILE", "reject, own or cl100k=FILE", lambda raw: _token_ids(raw)),
        HttpOptions.token_ids,
        "Token ids in place of texts: refuse them; take them as those of the bundle's tokenizer; or decode them with "
        "tiktoken's file of cl100k_base, whose ids LangChain sends.",
    )
    on_long: str = _option(
        _TEXTS,
        choice("truncate", "error"),
        HttpOptions.on_long,
        "Texts that are too long: truncate and count them, or 400.",
    )
    empty: str = _option(
        _TEXTS, choice("embed", "error"), HttpOptions.empty, "Empty texts: embed them, or 400 as OpenAI does."
    )
    normalize: bool | None = _option(
        _TEXTS,
        flag(),
        HttpOptions.normalize,
        "Divide vectors by their L2 norm, or do not, where a request does not say.",
        "as each route's clients expect",
    )

    api_key_file: str | None = _option(
        _ACCESS, text("FILE"), None, "File of keys, one a line, one of which each request must have.", "", told=False
    )
    metrics_need_key: bool = _option(
        _ACCESS, flag(), HttpOptions.metrics_need_key, "Let /metrics need a key too, if there are keys.", "off"
    )
    cors_origin: tuple[str, ...] = _option(
        _ACCESS, origin(), (), "Origin whose pages may call; repeatable; * for all.", ""
    )
    tls_cert: str | None = _option(
        _ACCESS, text("FILE"), None, "Certificate chain, PEM; needs --tls-key.", "", told=False
    )
    tls_key: str | None = _option(_ACCESS, text("FILE"), None, "Private key of the certificate, PEM.", "", told=False)

    verify: bool = _option(
        _LIFE, flag(), True, "Prove the parity of each bundle on this machine before it answers.", "on"
    )
    drift: bool = _option(
        _LIFE, flag(), False, "Measure how far the texts are from each whitening's corpus, as gauges.", "off"
    )
    drain: float = _option(
        _LIFE,
        seconds(),
        5.0,
        "After SIGTERM, time in which requests are still taken while /ready is 503 already.",
        "5 s",
    )
    grace: float = _option(_LIFE, seconds(), 30.0, "After the drain, time in which requests that run may end.", "30 s")

    log: str | None = _option(
        _LOGS, choice("text", "json"), None, "Format of the log on stderr.", "text on a terminal, else json"
    )
    access_log: bool = _option(_LOGS, flag(), True, "Log one line a request, without its texts.", "on")


def _token_ids(raw: str) -> str:
    kind, equals, file = raw.partition("=")
    if raw in ("reject", "own") or (kind == "cl100k" and equals and file):
        return raw
    raise ValueError


def options() -> Iterator[Option]:
    """Yield every option, in the order of the table."""
    for item in fields(Settings):
        yield _described(item)


def told(settings: Settings) -> dict[str, object]:
    """Return the value of every option by its key, as /info tells them: of files of secrets, whether there is one."""
    found: dict[str, object] = {}
    for option in options():
        value = getattr(settings, option.name)
        found[option.key] = value if option.told else value is not None
    return found


def _described(item: "Field[Any]") -> Option:
    assert item.default is not MISSING
    about = item.metadata
    return Option(item.name, about["group"], about["kind"], item.default, about["help"], about["shown"], about["told"])
