"""Implement `whiten serve`: a server of bundles over HTTP, whose options are settings of `Settings`."""

import os
import signal
import sys
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from whiten_runtime.commands.console import Decorated, command, heading, option, warn
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.ort.process import is_terminal
from whiten_serving.settings import SETTINGS, Setting, Settings, check_known, read_keys, read_models, usual_format

_SECTIONS = {
    "Address and keys": ("listen", "metrics_listen", "keep_alive", "tls", "api_key_file"),
    "Limits": ("max_texts", "max_body", "max_in_flight", "timeout", "max_wait"),
    "Process": ("log", "page", "device", "verify", "drain", "grace"),
}
_OPTIONS = [name for names in _SECTIONS.values() for name in names]
_FILE_ONLY = ", ".join(sorted(setting.key for name, setting in SETTINGS.items() if name not in _OPTIONS))
_OTHERS_METRICS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


def _setting_options(command: Decorated) -> Decorated:
    """Add the options, as texts that `Settings` reads. What is not given is None: the default is the setting's."""
    for section, names in reversed(_SECTIONS.items()):  # click takes the options of a command from the last
        for name in reversed(names):
            command = _option(SETTINGS[name])(command)
        command = heading(section)(command)
    return command


def _option(setting: Setting) -> Any:
    words = setting.help + (f" [default: {setting.shown()}]" if setting.shown() else "")
    if setting.kind == (True, False):
        return option(f"--{setting.key}/--no-{setting.key}", default=None, help=words)
    if isinstance(setting.kind, tuple):
        return option(f"--{setting.key}", type=click.Choice(setting.kind), help=words)
    return option(f"--{setting.key}", metavar=setting.kind.noun, help=words)


def read_config(path: str) -> dict[str, Any]:
    """Return the settings in a file of TOML by their names, and the bundles of its table `models` as arguments."""
    try:
        tree = tomllib.loads(Path(path).read_text("utf-8"))
        check_known(tree, ["models", *(setting.key for setting in SETTINGS.values())])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; wanted a file of TOML") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:  # of a number with too many digits, too
        raise UsageError(f"{path}: not TOML: {error}") from None
    models = tree.pop("models", {})
    if not isinstance(models, dict) or not all(isinstance(bundle, str) and bundle for bundle in models.values()):
        raise UsageError(f'{path}: wanted bundles in models, as in [models] and minilm = "bundles/minilm"')
    named = {key.replace("-", "_"): tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
    return named | {"models": [f"{name}={bundle}" for name, bundle in models.items()]}


def _note_hang_ups() -> list[int]:
    """Return a list to which each SIGHUP is added, until the process takes them; end if the terminal is gone."""
    hang_ups: list[int] = []
    terminal = is_terminal(sys.stderr)

    def note(number: int, frame: object) -> None:
        if terminal and not is_terminal(sys.stderr):
            raise SystemExit(128 + number)
        hang_ups.append(number)

    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, note)
    return hang_ups


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
    help=f"File of TOML. Its keys are these options and {_FILE_ONLY}; a table models holds the bundles.",
)
@_setting_options
def serve(models: tuple[str, ...], config: str | None, **named: Any) -> None:
    """Serve bundles over HTTP, with the API of OpenAI, TEI and Ollama.

    TEI is text-embeddings-inference. /metrics and /ready are there too. Several bundles share the processor; a request
    chooses one by NAME, which defaults to the directory's name.

    Each option is also an environment variable, such as WHITEN_SERVE_MAX_TEXTS for --max-texts, and a key of --config.
    The command line overrides the environment, which overrides the file. WHITEN_SERVE_MODELS names bundles,
    WHITEN_SERVE_CONFIG the file, WHITEN_API_KEY keys, separated by commas, and WHITEN_THREADS the number of threads.

    SIGTERM drains, then stops; Ctrl-C on a terminal stops at once. SIGHUP reloads bundles that were replaced, the file
    of keys, and that of --tls.
    """
    hang_ups = _note_hang_ups()
    values = {"log": usual_format(), "models": ()} | (read_config(config) if config else {})
    values |= {name: value for name, value in named.items() if value is not None}
    in_file = values.pop("models")
    bundles = read_models(models or in_file, warn)
    settings = Settings(**values)
    settings = replace(settings, api_keys=read_keys(settings.api_key_file, os.environ, warn))
    with needing("serve"):
        for name in _OTHERS_METRICS:  # prometheus_client would write its numbers there, and read those of others
            os.environ.pop(name, None)
        from whiten_serving.process import serve as run
    run(settings, bundles, hang_ups)
