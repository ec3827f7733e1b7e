"""Implement `whiten serve`: a server of bundles over HTTP, whose options are settings of `Settings`."""

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from whiten_runtime.commands.console import Command, command, warn
from whiten_runtime.commands.help import heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_serving.arguments import model_choices, note_hang_ups, read_keys, usual_format
from whiten_serving.settings import Measure, Settings, check_known, declared

_SETTINGS = {setting.name: setting for setting in declared(Settings)}
_SECTIONS = {
    "Address and keys": ("listen", "metrics_listen", "keep_alive", "tls", "api_key_file"),
    "Limits": ("max_texts", "max_body", "max_in_flight", "timeout", "max_wait"),
    "Process": ("log", "page", "device", "verify", "drain", "grace"),
}
_OPTIONS = [name for names in _SECTIONS.values() for name in names]
_FILE_ALONE = sorted(setting.key for name, setting in _SETTINGS.items() if name not in _OPTIONS)
_OTHERS_METRICS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


def _setting_options(command: Command) -> Command:
    """Add the options, as texts that `Settings` reads. What is not given is None: the default is the setting's."""
    for section, names in reversed(_SECTIONS.items()):  # click takes the options of a command from the last
        for name in reversed(names):
            setting = _SETTINGS[name]
            words = setting.help + (f" [default: {setting.shown()}]" if setting.shown() else "")
            if setting.values == (True, False):
                command = option(f"--{setting.key}/--no-{setting.key}", default=None, help=words)(command)
            else:
                metavar = setting.kind.noun if isinstance(setting.kind, Measure) else setting.kind
                values = click.Choice([str(value) for value in setting.values]) if setting.values else None
                command = option(f"--{setting.key}", type=values, metavar=metavar, help=words)(command)
        command = heading(section)(command)
    return command


def _read_config(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    """Take the options in a file of TOML as defaults, and return its other settings by their names.

    A table [models] has lines of NAME = "BUNDLE".
    """
    if not value:
        return {}
    try:
        tree = tomllib.loads(Path(value).read_text("utf-8"))
        check_known(tree, ["models", *(setting.key for setting in _SETTINGS.values())])
        models = tree.pop("models", {})
        if not isinstance(models, dict) or not all(isinstance(bundle, str) and bundle for bundle in models.values()):
            raise UsageError('wanted bundles in models, as in [models] and minilm = "bundles/minilm"')
    except OSError as error:
        raise click.UsageError(f"{value}: {error.strerror}; wanted a file of TOML") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{value}: not TOML: {error}") from None
    except UsageError as error:
        raise click.UsageError(f"{value}: {error}") from None
    written = {key.replace("-", "_"): tuple(text) if isinstance(text, list) else text for key, text in tree.items()}
    alone = {name: written.pop(name) for name in list(written) if name not in _OPTIONS}
    context.default_map = written | (
        {"models": [f"{name}={bundle}" for name, bundle in models.items()]} if models else {}
    )
    return alone


@command(
    quiet=False,
    as_json=False,
    section="Use",
    context_settings={"auto_envvar_prefix": "WHITEN_SERVE"},
    examples=(
        "whiten serve bundles/minilm",
        "whiten serve minilm=bundles/minilm bge=ORG/NAME --listen 9000",
    ),
)
@click.argument("models", metavar="[NAME=]BUNDLE", nargs=-1, envvar="WHITEN_SERVE_MODELS")
@heading("Settings")
@option(
    "--config",
    metavar="FILE",
    is_eager=True,
    callback=_read_config,
    help=f"File of TOML. Its keys are these options and {', '.join(_FILE_ALONE)}; a table models holds the bundles.",
)
@_setting_options
def serve(models: tuple[str, ...], config: dict[str, Any], **named: Any) -> None:
    """Serve bundles over HTTP, with the API of OpenAI, TEI and Ollama.

    TEI is text-embeddings-inference. /metrics and /ready are there too. Several bundles share the processor; a request
    chooses one by NAME, which defaults to the directory's name.

    Each option is also an environment variable, such as WHITEN_SERVE_MAX_TEXTS for --max-texts, and a key of --config.
    The command line overrides the environment, which overrides the file. WHITEN_SERVE_MODELS names bundles,
    WHITEN_SERVE_CONFIG the file, WHITEN_API_KEY keys, separated by commas, and WHITEN_THREADS the number of threads.

    SIGTERM drains, then stops; Ctrl-C on a terminal stops at once. SIGHUP reloads bundles that were replaced, the file
    of keys, and that of --tls.
    """
    hang_ups = note_hang_ups()
    given: dict[str, Any] = {"log": usual_format()}
    given |= config | {name: value for name, value in named.items() if value is not None}
    settings = Settings(api_keys=read_keys(given.get("api_key_file"), os.environ, warn), **given)
    choices = model_choices(models, warn)
    with needing("serve"):
        for name in _OTHERS_METRICS:  # prometheus_client would write its numbers there, and read those of others
            os.environ.pop(name, None)
        from whiten_serving.process import serve as run
    run(settings, choices, hang_ups)
