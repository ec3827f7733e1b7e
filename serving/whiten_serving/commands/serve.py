"""Implement `whiten serve`: a server of bundles over HTTP, whose options are the settings of `Settings`."""

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any

import click

from whiten_runtime.commands.console import Command, command, warn
from whiten_runtime.commands.help import heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_serving.arguments import model_choices, note_hang_ups, read_keys, usual_format
from whiten_serving.settings import SECTIONS, Measure, Setting, Settings, declared

_MODELS = "models"
_OTHERS_METRICS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
_DECLARED = {name.replace("_", "-"): (default, setting) for name, default, setting in declared(Settings)}
_FILE_ALONE = sorted(key for key, (_, setting) in _DECLARED.items() if setting.in_file and setting.section is None)


class _Measured(click.ParamType):  # type: ignore[type-arg]
    """A number that may have a unit."""

    def __init__(self, measure: Measure) -> None:
        self.name = measure.noun
        self._measure = measure

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return self._measure.read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _setting_options(command: Command) -> Command:
    """Add an option for each setting that has a section. What is not given is None: the default is the setting's."""
    for section in reversed(SECTIONS):  # click takes the options of a command from the last to the first
        for key, (default, setting) in reversed(_DECLARED.items()):
            if setting.section == section:
                command = _option(key, default, setting)(command)
        command = heading(section)(command)
    return command


def _option(key: str, default: object, setting: Setting) -> Any:
    words = setting.shown(default)
    about: dict[str, Any] = {"default": None, "help": setting.help + (f" [default: {words}]" if words else "")}
    if isinstance(setting.kind, Measure):
        return option(f"--{key}", type=_Measured(setting.kind), metavar=setting.kind.noun, **about)
    if setting.kind == (True, False):
        return option(f"--{key}/--no-{key}", **about)
    values = None if setting.kind is None else click.Choice([str(value) for value in setting.kind])
    return option(f"--{key}", type=values, metavar=setting.metavar, **about)


def _read_config(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    """Take the options in a file of TOML as defaults, and return its other settings by their names.

    A table [models] has lines of NAME = "BUNDLE".
    """
    if not value:
        return {}
    try:
        tree = tomllib.loads(Path(value).read_text("utf-8"))
    except OSError as error:
        raise click.UsageError(f"{value}: {error.strerror}; wanted a file of TOML") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{value}: not TOML: {error}") from None
    known = [_MODELS, *(key for key, (_, setting) in _DECLARED.items() if setting.in_file)]
    for key in tree:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "; see whiten serve --help"
            raise click.UsageError(f"{value}: there is no setting '{key}'{hint}")
    table = tree.pop(_MODELS, {})
    if not isinstance(table, dict) or not all(isinstance(bundle, str) and bundle for bundle in table.values()):
        raise click.UsageError(f'{value}: wanted bundles in models, as in [models] and minilm = "bundles/minilm"')
    models = {_MODELS: [f"{name}={bundle}" for name, bundle in table.items()]} if table else {}
    alone = {key.replace("-", "_"): _file_value(key, tree.pop(key)) for key in _FILE_ALONE if key in tree}
    context.default_map = {key.replace("-", "_"): one for key, one in tree.items()} | models
    return alone


def _file_value(key: str, written: Any) -> Any:
    """Return the value of a setting that is no option, so that click does not read it."""
    kind = _DECLARED[key][1].kind
    if isinstance(kind, Measure):
        try:
            return kind.read(written)
        except UsageError as error:
            raise click.BadParameter(str(error), param_hint=repr(key)) from None
    return tuple(written) if isinstance(written, list) else written


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

    SIGTERM and Ctrl-C drain, then stop. SIGHUP reloads bundles that were replaced, the file of keys, and that of --tls.
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
