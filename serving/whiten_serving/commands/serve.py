"""Implement `whiten serve`: a server of bundles over HTTP."""

import difflib
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from whiten_runtime.commands.console import one_line_errors, warn
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import needing
from whiten_serving.requests import MAX_QUEUE_TOKENS
from whiten_serving.settings import LONGEST, Settings, model_choices, read_keys

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]*)")
_MODELS = "models"


class Measure(click.ParamType):  # type: ignore[type-arg]
    """A number with a unit, such as 500ms or 32MB; a number without one is in the first unit."""

    def __init__(self, name: str, units: Mapping[str, float], example: str, least: float, most: float) -> None:
        self.name = name
        self._units, self._example, self._least, self._most = units, example, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value).strip())
        factor = self._units.get(match[2].lower()) if match else None
        number = float(match[1]) * factor if match and factor else -1.0
        if not self._least <= number <= self._most:
            self.fail(f"{value!r} is not a number such as {self._example}, from {self._least:g} to {self._most:g}")
        return int(number) if self.name == "size" else number


_TIMES = {"": 1, "s": 1, "ms": 0.001, "m": 60, "h": 3600}
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
SECONDS = Measure("seconds", _TIMES, "30, 2.5, 500ms or 2m", 0.001, LONGEST)
SECONDS_OR_0 = Measure("seconds", _TIMES, "0, 30, 2.5, 500ms or 2m", 0, LONGEST)
SIZE = Measure("size", _SIZES, "1000000, 32MB or 16MiB", 1, 2**40)
COUNT = click.IntRange(min=1)

shown = partial(option, show_default=True)
"""Adds an option whose help shows its default."""


def _read_config(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Take the options of a file of TOML as defaults; a table [models] has lines of NAME = "BUNDLE"."""
    if not value:
        return
    try:
        tree = tomllib.loads(Path(value).read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"{value}: {error.strerror}; wanted a file of TOML") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{value}: not TOML: {error}") from None
    names = {one.opts[0].lstrip("-"): str(one.name) for one in context.command.params if isinstance(one, click.Option)}
    for key in tree:
        if key not in names and key != _MODELS:
            near = difflib.get_close_matches(key, [*names, _MODELS], 1)
            hint = f"; did you mean {near[0]}?" if near else "; see whiten serve --help"
            raise click.UsageError(f"{value}: there is no option '{key}'{hint}")
    table = tree.pop(_MODELS, {})
    if not isinstance(table, dict) or not all(isinstance(bundle, str) and bundle for bundle in table.values()):
        raise click.UsageError(f'{value}: wanted bundles in models, as in [models] and minilm = "bundles/minilm"')
    models = {_MODELS: [f"{name}={bundle}" for name, bundle in table.items()]} if table else {}
    context.default_map = {names[key]: value for key, value in tree.items()} | models


@command(
    section="Embed",
    context_settings={"auto_envvar_prefix": "WHITEN_SERVE"},
    examples=(
        "whiten serve bundles/minilm",
        "whiten serve minilm=bundles/minilm bge=ORG/NAME --port 9000",
    ),
)
@click.argument("models", metavar="[NAME=]BUNDLE", nargs=-1, envvar="WHITEN_SERVE_MODELS")
@heading("Settings")
@option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="File of TOML with these options. Their names are the keys; a table holds the models.",
)
@heading("Address")
@shown("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all of IPv4.")
@shown("--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0 for a free one.")
@option("--uds", metavar="PATH", help="Unix socket to listen on; its owner and group may connect.")
@option("--fd", type=click.IntRange(min=0), help="Socket that is open already; 3 under systemd's units.")
@option("--root-path", default="", metavar="PATH", help="Path that a gateway leaves in front of all routes.")
@heading("Models and queue")
@option("--threads", type=COUNT, metavar="N", help="Threads. [default: all usable CPUs]")
@option("--device", help="Where to compute: cpu, cuda, cuda:N or tensorrt. [default: cpu]")
@option("--max-batch-tokens", type=COUNT, help="Padded tokens of a batch. [default: as Encoder.encode]")
@shown("--max-queue-tokens", type=COUNT, default=MAX_QUEUE_TOKENS, help="Tokens that may wait; more get 429.")
@shown("--max-wait", type=SECONDS, default="10s", help="Work that may wait, at the measured rate; more gets 429.")
@heading("Limits")
@shown("--max-texts", type=COUNT, default=2048, help="Texts of a request.")
@shown("--max-text-chars", type=COUNT, default=10**6, help="Characters of a text.")
@shown("--max-body", type=SIZE, default="32MB", help="Bytes of a request's body.")
@shown("--max-in-flight", type=SIZE, default="256MB", help="Memory of bodies and of their texts; more gets 429.")
@shown("--max-requests", type=COUNT, default=2048, help="Requests at once; more get 429.")
@shown("--timeout", type=SECONDS, default="60s", help="Time until a request gets 504; x-timeout-ms shortens it.")
@heading("Texts and vectors")
@shown(
    "--token-ids",
    type=click.Choice(["reject", "own"]),
    default="reject",
    help="Token ids instead of texts: refuse them, or take them as those of the bundle's tokenizer.",
)
@shown("--on-long", type=click.Choice(["truncate", "error"]), default="truncate", help="Too long texts: cut, or 400.")
@shown("--empty", type=click.Choice(["embed", "error"]), default="embed", help="Empty texts: embed, or 400 as OpenAI.")
@option(
    "--normalize/--no-normalize",
    default=None,
    help="Divide vectors by their L2 norm where a request does not say. [default: as each route's clients expect]",
)
@heading("Access")
@option("--api-key-file", metavar="FILE", help="File of keys, one a line: KEY, NAME KEY or NAME:KEY.")
@option(
    "--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN", help="Origin whose pages may call; * for all."
)
@option("--tls-cert", metavar="FILE", help="Certificate chain, PEM; needs --tls-key.")
@option("--tls-key", metavar="FILE", help="Private key of the certificate, PEM.")
@heading("Starting and stopping")
@option("--verify/--no-verify", default=True, help="Prove each bundle's parity on this machine first. [default: on]")
@shown("--drain", type=SECONDS_OR_0, default="5s", help="Time of taking requests after SIGTERM; /ready is 503 at once.")
@shown("--grace", type=SECONDS_OR_0, default="30s", help="Time after the drain in which running requests may end.")
@heading("Logs")
@option(
    "--log", type=click.Choice(["text", "json"]), help="Format of the log. [default: text on a terminal, else json]"
)
@option("--access-log/--no-access-log", default=True, help="Log one line a request, without its texts.")
@one_line_errors
def serve(models: tuple[str, ...], log: Literal["text", "json"] | None, access_log: bool, **values: Any) -> None:
    """Serve bundles over HTTP, with the API of OpenAI, TEI and Ollama.

    TEI is text-embeddings-inference. /metrics and /ready are there too. Several bundles share the processor; a request
    chooses one by NAME, which defaults to the directory's name.

    Each option is also an environment variable, such as WHITEN_SERVE_MAX_TEXTS for --max-texts, and a key of --config.
    The command line overrides the environment, which overrides the file. WHITEN_SERVE_MODELS names bundles,
    WHITEN_SERVE_CONFIG the file, and WHITEN_API_KEY keys, separated by commas.

    SIGTERM and Ctrl-C drain, then stop. SIGHUP reloads bundles that were replaced, and the file of keys.
    """
    form: Literal["text", "json"] = log or ("text" if sys.stderr.isatty() else "json")
    settings = Settings(
        api_keys=read_keys(values["api_key_file"], os.environ, warn),
        log=form,
        access_log=form if access_log else "off",
        **values,
    )
    choices = model_choices(models, warn)
    with needing("serve"):
        from whiten_serving.process import serve as run
    run(settings, choices)
