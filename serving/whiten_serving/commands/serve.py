"""Implement `whiten serve`: a server of bundles over HTTP."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from whiten_runtime.checks import needing
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_serving.settings.reading import (
    CONFIG_VARIABLE,
    from_command_line,
    from_environment,
    from_file,
    resolve,
)
from whiten_serving.settings.table import Option as Row
from whiten_serving.settings.table import options

_COMMON = (
    *("host", "port", "threads", "device", "on_long", "normalize", "api_key_file"),
    *("cors_origin", "tls_cert", "tls_key", "verify", "log"),
)
"""Options that --help shows; --help-all and the reference have all."""


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option of click for each row of the table."""
    for row in reversed(list(options())):
        command = _click_option(row)(command)
    return command


def _click_option(row: Row) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = f"{row.help} [default: {row.shown}]" if row.shown else row.help
    rare = row.name not in _COMMON
    if row.kind.flag:
        added = option(f"{row.flag}/--no-{row.key}", row.name, default=None, help=text, rare=rare)
    else:
        several, metavar = row.kind.several, row.kind.metavar
        added = option(row.flag, row.name, default=None, multiple=several, metavar=metavar, help=text, rare=rare)
    return lambda command: heading(row.group)(added(command))


@command(
    section="Embed",
    examples=(
        "whiten serve bundles/minilm-l0-l1",
        "whiten serve small=bundles/minilm-l0-l1 bge=ORG/NAME --port 9000",
    ),
)
@click.argument("models", metavar="[NAME=]BUNDLE", nargs=-1)
@heading("Settings")
@option(
    "--config",
    metavar="FILE",
    help="File of TOML with these options. Their names are the keys; a table holds the models.",
)
@_with_options
@one_line_errors
def serve(models: tuple[str, ...], config: str | None, **values: object) -> None:
    """Serve bundles over HTTP, by the routes of OpenAI, TEI and Ollama.

    TEI is text-embeddings-inference. There are /metrics and /ready besides. Several bundles share the processor;
    requests choose one by NAME, which is the directory's if none is given.

    Each option is also an environment variable, as WHITEN_SERVE_MAX_TEXTS for --max-texts, and a key of --config. The
    command line goes before the environment, and that before the file. WHITEN_SERVE_MODELS names bundles,
    WHITEN_SERVE_CONFIG the file, and WHITEN_API_KEY keys, separated by commas.

    SIGTERM and Ctrl-C drain, then stop. SIGHUP reloads bundles, keys and certificate that were replaced.
    """
    sources = [from_command_line(values, models), from_environment(os.environ)]
    file = config or os.environ.get(CONFIG_VARIABLE)
    if file:
        sources.append(from_file(Path(file)))
    settings, choices = resolve(sources)
    with needing("serve"):
        from whiten_serving.server.running import serve as run
    run(settings, choices)
