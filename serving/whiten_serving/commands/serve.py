"""Implement `whiten serve`: a server of bundles over HTTP."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from whiten_runtime.checks import needing
from whiten_runtime.commands.console import one_line_errors
from whiten_serving.settings.reading import (
    CONFIG_VARIABLE,
    from_command_line,
    from_environment,
    from_file,
    resolve,
)
from whiten_serving.settings.table import Option, options


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option of click for each row of the table."""
    for option in reversed(list(options())):
        command = _click_option(option)(command)
    return command


def _click_option(option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = f"{option.help} [default: {option.shown}]" if option.shown else option.help
    if option.kind.flag:
        return click.option(f"{option.flag}/--no-{option.key}", option.name, default=None, help=text)
    several = option.kind.several
    metavar = option.kind.metavar
    return click.option(option.flag, option.name, default=None, multiple=several, metavar=metavar, help=text)


@click.command()
@click.argument("models", metavar="[NAME=]BUNDLE", nargs=-1)
@click.option("--config", metavar="FILE", help="File of TOML with options by their names, and a table of models.")
@_with_options
@one_line_errors
def serve(models: tuple[str, ...], config: str | None, **values: object) -> None:
    """Serve bundles over HTTP: the routes of OpenAI, text-embeddings-inference and Ollama, /metrics, /ready.

    Several bundles share the processor; requests choose one by NAME, which is the directory's if none is given.

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
