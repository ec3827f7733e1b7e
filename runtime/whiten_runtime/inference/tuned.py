"""Read and write the choice of `whiten tune`: provider, threads and token budget for one bundle on one machine.

It is a file beside the bundle, BUNDLE.tuned.json, since the bundle's own files have hashes.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from whiten_runtime.bundle.hashing import SentenceDigest
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.checks import whole_number
from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import replace_file
from whiten_runtime.ort.processor import available_cpus, processor
from whiten_runtime.ort.providers import Provider, parse_provider, providers_for
from whiten_runtime.ort.session import SessionOptions, Tuning

FORMAT = 1

_SNAPSHOTS = "snapshots"


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds one way to run a bundle.

    Attributes:
        provider: provider as on the command line, such as "cpu" or "openvino:bf16".
        threads: threads of one call.
        token_budget: maximum number of padded tokens of a run.
    """

    provider: str
    threads: int
    token_budget: int

    def options(self, spinning: bool = True) -> SessionOptions:
        """Return the options of sessions.

        Raises:
            UsageError: a value is out of range, or the provider cannot be read.
        """
        tuning = Tuning(token_budget=whole_number("token_budget", self.token_budget, 1))
        return SessionOptions((parse_provider(self.provider),), self.threads, spinning, tuning)


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what was measured of one setting.

    Attributes:
        setting: the setting.
        short: texts per second of a call with single sentences, the median of the rounds.
        mixed: the same with passages of mixed lengths.
        ratio: speed relative to the default setting: the median of the rounds' geometric means of both ratios.
        least: the ratio that all rounds but one reached.
    """

    setting: Setting
    short: float
    mixed: float
    ratio: float
    least: float


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the machine of a choice: another one is refused."""

    processor: str
    features: tuple[str, ...]
    cpus: int

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine."""
        unit = processor()
        return cls(processor=unit.model, features=unit.features, cpus=available_cpus())

    def __str__(self) -> str:
        return f"{self.cpus} CPUs of {self.processor or 'an unknown processor'} ({', '.join(self.features) or '-'})"


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Represents the content of BUNDLE.tuned.json.

    Attributes:
        format: version of this format.
        bundle: name of the bundle, for people.
        graph: id of the graph's files, from `graph_id`.
        machine: machine on which it was measured.
        versions: versions of what computed, for people.
        setting: the setting that was chosen.
        measured: all settings that were measured.
    """

    format: int
    bundle: str
    graph: str
    machine: Machine
    versions: dict[str, str]
    setting: Setting
    measured: tuple[Rate, ...]


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


def write_choice(bundle: Path, choice: Choice) -> Path:
    """Write a choice beside its bundle, in place of an earlier one, and return its path.

    Raises:
        WhitenError: the folder cannot be written.
    """
    path = choice_path(bundle)
    replace_file(path, msgspec.json.format(msgspec.json.encode(choice), indent=2) + b"\n")
    return path


def tuned_options(bundle: Path, spinning: bool = True) -> SessionOptions:
    """Return the options that `whiten tune` chose for a bundle on this machine.

    Raises:
        UsageError: there is no choice, it is not understood, or it was made for another machine or another bundle.
        BundleError: the bundle's manifest cannot be read.
    """
    path = choice_path(bundle)
    choice = read_choice(path, bundle)
    if choice.graph != graph_id(read_manifest(bundle)):
        raise UsageError(f"{path}: made for another graph than that of {bundle}; run whiten tune {bundle} again")
    if choice.machine != (here := Machine.here()):
        raise UsageError(
            f"{path}: measured on {choice.machine}, but this machine has {here}; run whiten tune {bundle} here, or "
            "leave tuned out"
        )
    try:
        return choice.setting.options(spinning)
    except UsageError as error:
        raise UsageError(f"{path}: {error}; run whiten tune {bundle} again") from None


def session_options(
    bundle: Path,
    providers: Sequence[Provider] | None,
    threads: int | None,
    device: str | None,
    spinning: bool,
    tuned: bool,
) -> SessionOptions:
    """Return the options of sessions from the arguments of `Encoder`.

    Raises:
        UsageError: `tuned` is true, and one of the others says what it leaves to `whiten tune`; or a value cannot be
            used; or as `tuned_options`.
        BundleError: as `tuned_options`.
    """
    if not tuned:
        return SessionOptions(providers_for(providers, device), threads, spinning)
    if (providers, threads, device) != (None, None, None):
        raise UsageError("tuned takes providers and threads from whiten tune; leave them and device out")
    return tuned_options(bundle, spinning)


def read_choice(path: Path, bundle: Path) -> Choice:
    """Read a choice for a bundle.

    Raises:
        UsageError: there is none, or it is not understood; the message names the field.
    """
    try:
        choice = msgspec.json.decode(path.read_bytes(), type=Choice)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; run whiten tune {bundle}, or leave tuned out") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a choice of whiten tune ({error}); run whiten tune again") from None
    if choice.format != FORMAT:
        raise UsageError(f"{path}: format is {choice.format}; wanted {FORMAT}; run whiten tune again")
    return choice
