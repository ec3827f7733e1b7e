"""Read the choice of `whiten tune`: provider, threads and token budget for one bundle on one machine."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from whiten_runtime.bundle.files import SentenceDigest
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.errors import UsageError, whole_number
from whiten_runtime.ort.processor import available_cpus, processor
from whiten_runtime.ort.providers import Provider, parse_provider, providers_for
from whiten_runtime.ort.session import SessionOptions, Tuning

_SNAPSHOTS = "snapshots"


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one way to run a bundle."""

    provider: str  # provider as on the command line, such as "cpu" or "openvino:bf16"
    threads: int  # threads of one call
    token_budget: int  # maximum number of padded tokens of a run

    def options(self, spinning: bool = True) -> SessionOptions:
        """Return the options of sessions."""
        tuning = Tuning(token_budget=whole_number("token_budget", self.token_budget, 1))
        return SessionOptions((parse_provider(self.provider),), self.threads, spinning, tuning)


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what was measured of one setting."""

    setting: Setting  # the setting
    short: float  # texts per second of a call with single sentences, the median of the rounds
    mixed: float  # the same with passages of mixed lengths
    ratio: float  # speed relative to the default setting: the median of the rounds' geometric means of both ratios
    least: float  # the ratio that all rounds but one reached


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Represents the content of BUNDLE.tuned.json."""

    graph: str  # id of the graph's files, from `graph_id`
    machine: str  # machine on which it was measured, from `this_machine`; another one is refused
    setting: Setting  # the setting that was chosen
    measured: tuple[Rate, ...]  # all settings that were measured


def this_machine() -> str:
    """Describe the processor of this machine: a choice of another one is refused."""
    unit = processor()
    return f"{available_cpus()} CPUs of {unit.model or 'an unknown processor'} ({', '.join(unit.features) or '-'})"


def choice_path(bundle: Path) -> Path:
    """Return the path of the choice for a bundle: beside it, or, in the hub's cache, in the repository's folder."""
    whole = bundle.resolve()
    if whole.parent.name == _SNAPSHOTS and whole.parent.parent.name.startswith("models--"):
        return whole.parent.with_name(f"{whole.name}.tuned.json")  # the client takes a file among snapshots for damage
    return whole.with_name(f"{whole.name}.tuned.json")


def graph_id(manifest: Manifest) -> str:
    """Return a SHA-256 over the hashes of the graph and its weights."""
    digest = SentenceDigest()
    for name, record in sorted(manifest.files.items()):
        if name.startswith("onnx/"):
            digest.add(f"{name} {record.sha256}")
    return digest.hexdigest()


def session_options(
    bundle: Path,
    providers: Sequence[Provider] | None,
    threads: int | None,
    device: str | None,
    spinning: bool,
    tuned: bool,
) -> SessionOptions:
    """Return the options of sessions from the arguments of `Encoder`."""
    if not tuned:
        return SessionOptions(providers_for(providers, device), threads, spinning)
    if (providers, threads, device) != (None, None, None):
        raise UsageError("tuned takes providers and threads from whiten tune; leave them and device out")
    return tuned_options(bundle, spinning)


def tuned_options(bundle: Path, spinning: bool = True) -> SessionOptions:
    """Return the options that `whiten tune` chose for a bundle on this machine."""
    path, again = choice_path(bundle), f"run whiten tune {bundle} again"
    try:
        choice = msgspec.json.decode(path.read_bytes(), type=Choice)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; run whiten tune {bundle}, or leave tuned out") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a choice of whiten tune ({error}); {again}") from None
    if choice.graph != graph_id(read_manifest(bundle)):
        raise UsageError(f"{path}: made for another graph than that of {bundle}; {again}")
    if choice.machine != (here := this_machine()):
        raise UsageError(
            f"{path}: measured on {choice.machine}, but this machine has {here}; run whiten tune {bundle} here, or "
            "leave tuned out"
        )
    try:
        return choice.setting.options(spinning)
    except UsageError as error:
        raise UsageError(f"{path}: {error}; {again}") from None
