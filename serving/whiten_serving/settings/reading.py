"""Read the settings from their sources: the command line goes before the environment, that before a file of TOML."""

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.errors import DataError, UsageError
from whiten_serving.settings.models import ModelChoice, model_choices
from whiten_serving.settings.table import PREFIX, Settings, options

MODELS = "models"
"""Key of the table of models in a file of TOML: NAME = "BUNDLE"."""

MODELS_VARIABLE = f"{PREFIX}MODELS"
"""Environment variable of the models: what the command line takes, [NAME=]BUNDLE, separated by blanks."""

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
"""Environment variable of the file of TOML."""

_SERVICE_LINKS = re.compile(rf"{PREFIX}(SERVICE_\w+|PORT_\d+_\w+)|{PREFIX}PORT=(tcp|udp|sctp)://.*")
"""Variables, as NAME or NAME=VALUE, that Kubernetes sets in every pod beside a service called whiten-serve."""

_OTHER_VARIABLES = (MODELS_VARIABLE, CONFIG_VARIABLE)


@dataclass(frozen=True)
class Given:
    """Holds what one source gives.

    Attributes:
        values: raw values by field of `Settings`.
        names: how the source names each of these fields, for messages.
        models: its models, as [NAME=]BUNDLE.
    """

    values: Mapping[str, object]
    names: Mapping[str, str]
    models: Sequence[str] = ()


def from_command_line(values: Mapping[str, object], models: Sequence[str]) -> Given:
    """Return what the command line gives; values that are None or empty were not given."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    return Given(given, {option.name: option.flag for option in options()}, models)


def from_environment(environment: Mapping[str, str]) -> Given:
    """Return what the environment gives; empty variables count as not given.

    Raises:
        UsageError: a variable begins like those of options, but there is no such option; or that of the models has a
            quotation mark without its fellow.
    """
    names = {option.variable: option.name for option in options()}
    environment = {name: text for name, text in environment.items() if not _is_service_link(name, text)}
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and text and variable not in (*names, *_OTHER_VARIABLES):
            raise UsageError(f"there is no variable {variable}{_near(variable, [*names, *_OTHER_VARIABLES])}")
    values = {name: value for variable, name in names.items() if (value := environment.get(variable))}
    try:
        models = shlex.split(environment.get(MODELS_VARIABLE, ""))
    except ValueError as error:
        written = environment[MODELS_VARIABLE]
        raise UsageError(f"{MODELS_VARIABLE} is {written!r}; wanted [NAME=]BUNDLE, as a shell: {error}") from None
    return Given(values, {name: variable for variable, name in names.items()}, models)


def _is_service_link(name: str, text: str) -> bool:
    return bool(_SERVICE_LINKS.fullmatch(name) or _SERVICE_LINKS.fullmatch(f"{name}={text}"))


def from_file(path: Path) -> Given:
    """Return what a file of TOML gives: the keys are the options' names, and a table of models is NAME = "BUNDLE".

    Bundles are relative to the current directory, as on the command line.

    Raises:
        DataError: the file cannot be read, or is no TOML.
        UsageError: it has a key that is no option; the message names it.
    """
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; wanted a file of TOML") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise DataError(f"{path}: not a file of options: it is nested too deeply") from None
    names = {option.key: option.name for option in options()}
    for key in tree:
        if key not in names and key != MODELS:
            raise UsageError(f"{path}: there is no option '{key}'{_near(key, [*names, MODELS])}")
    values = {names[key]: value for key, value in tree.items() if key != MODELS}
    return Given(values, {name: f"{path}: {key}" for key, name in names.items()}, list(_models(tree, path)))


def _models(tree: Mapping[str, Any], path: Path) -> Iterator[str]:
    table = tree.get(MODELS, {})
    if not isinstance(table, dict):
        raise UsageError(f'{path}: models is {table!r}; wanted a table, such as [models] and minilm = "bundles/minilm"')
    for name, bundle in table.items():
        if not isinstance(bundle, str) or not bundle:
            raise UsageError(f"{path}: models.{name} is {bundle!r}; wanted the path of a bundle")
        yield f"{name}={bundle}"


def resolve(sources: Sequence[Given]) -> tuple[Settings, tuple[ModelChoice, ...]]:
    """Return the settings and models. Each option, and the models as a whole, come from the first source that has them.

    Raises:
        UsageError: a value cannot be used; the message has its name in its source, the value, and what is wanted.
    """
    values: dict[str, Any] = {}
    for option in options():
        source = next((given for given in sources if option.name in given.values), None)
        if source is not None:
            raw = source.values[option.name]
            try:
                values[option.name] = option.kind.value(raw)
            except ValueError as wanted:
                raise UsageError(f"{source.names[option.name]} is {raw!r}; wanted {wanted}") from None
    settings = Settings(**values)
    _check(settings)
    for source in sources:
        _check_place(source)
    return settings, model_choices(next((given.models for given in sources if given.models), ()))


def _check(settings: Settings) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: they do.
    """
    if settings.uds is not None and settings.fd is not None:
        raise UsageError("--uds and --fd were given together; choose one place to listen")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if settings.tls_cert else ("--tls-key", "--tls-cert")
        raise UsageError(f"{given} was given without {missing}; TLS needs both")


def _check_place(source: Given) -> None:
    """Refuse a source that gives an address besides a socket, one of which would be ignored.

    Raises:
        UsageError: it does.
    """
    for place in ("uds", "fd"):
        for address in ("host", "port"):
            if place in source.values and address in source.values:
                both = f"{source.names[place]} and {source.names[address]}"
                raise UsageError(f"{both} were given together; choose one place to listen")


def _near(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else "; see whiten serve --help"
