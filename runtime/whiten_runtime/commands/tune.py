"""Implement `whiten tune`: measure which provider, threads and token budget embed texts fastest on this machine."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from math import sqrt
from pathlib import Path
from statistics import median

import click
import msgspec

from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.bundle.records import Precision
from whiten_runtime.commands.console import (
    ConsoleReporter,
    echo,
    json_option,
    one_line_errors,
    print_json,
    quiet_option,
    say,
    table,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import BundleError, WhitenError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.replacing import check_file_place, lock_file, replace_file
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.opened.tuned import Choice, Rate, Setting, choice_path, graph_id, this_machine
from whiten_runtime.ort.openvino import plugin_version
from whiten_runtime.ort.processor import BF16, default_threads, processor
from whiten_runtime.ort.providers import parse_provider
from whiten_runtime.ort.session import SessionOptions, Tuning
from whiten_runtime.reporter import Reporter

ROUNDS = 7
"""Rounds of each comparison, after one that does not count: other programs disturb some of them."""

WORTH = 1.05
"""Ratio to the default from which another setting is chosen, if it also won in all rounds but one.

Of twelve pairs of equal settings, while other programs kept both processors busy, the medians lay between .94 and
1.055, and none above 1.05 had won so often.
"""

_FACTORS = (0.5, 2, 4)
"""Token budgets that are tried, over the default one."""

_MOST_SENTENCES = 16
"""Sentences of the longest passages: about 230 tokens."""

_LEAST_TEXTS = {"short": 8, "mixed": 2}

Texts = Mapping[str, Sequence[str]]


@command(
    section="Check",
    examples=(
        "whiten tune bundles/minilm-l0-l1",
        "whiten tune bundles/minilm-l0-l1 bundles/minilm-l0-l1-int8 --seconds 120",
    ),
)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path())
@heading("Measurement")
@option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=40.0,
    show_default=True,
    help="Time to measure. It is for all bundles together; opening them comes on top.",
)
@option(
    "--bf16",
    is_flag=True,
    help="Choose bfloat16 if it is fastest. Vectors then agree with those of float32 to a cosine of .9999.",
)
@heading("Output")
@json_option
@quiet_option
@one_line_errors
def tune(bundles: tuple[str, ...], seconds: float, bf16: bool, as_json: bool) -> None:
    """Measure how each bundle is fastest here, and write that down.

    It is written to BUNDLE.tuned.json beside the bundle. Compares providers, threads and token budgets on short
    texts and on texts of mixed lengths, in turn, while nothing else should run. Encoder(path, tuned=True) and
    whiten embed --tuned then run the bundle so; on another machine they refuse.
    """
    reporter = ConsoleReporter()
    paths = list(map(locate_bundle, dict.fromkeys(bundles)))
    for path in paths:
        check_file_place(choice_path(path), "another place for the bundle")
    choices = {path: tune_bundle(path, seconds / len(paths), bf16, reporter) for path in paths}
    files = {path: write_choice(path, choice) for path, choice in choices.items()}
    if as_json:
        print_json({"bundles": {str(path): choice for path, choice in choices.items()}})
    else:
        echo(_table(choices))
    for path, choice in choices.items():
        setting = choice.setting
        say(
            f"{path}: --device {setting.provider}, {setting.threads} threads, {setting.token_budget} tokens a run; "
            f"wrote {files[path]}"
        )
        if not bf16 and (faster := best(choice.measured, True)).provider.endswith("bf16"):
            say(f"{path}: {faster.provider} is faster, at a cosine of .9999 to float32; --bf16 chooses it")


def _table(choices: dict[Path, Choice]) -> str:
    header = ("bundle", "provider", "threads", "tokens a run", "short texts/s", "mixed texts/s", "ratio", "")
    rows = []
    for path, choice in choices.items():
        for number, rate in enumerate(choice.measured):
            one = rate.setting
            remarks = (["default"] if not number else []) + (["chosen"] if one == choice.setting else [])
            cells = (one.provider, str(one.threads), str(one.token_budget), f"{rate.short:.1f}", f"{rate.mixed:.1f}")
            rows.append((path.name, *cells, f"{rate.ratio:.2f}", ", ".join(remarks)))
    return table(header, rows)


def write_choice(bundle: Path, choice: Choice) -> Path:
    """Write a choice beside its bundle, in place of an earlier one, and return its path."""
    path = choice_path(bundle)
    content = msgspec.json.format(msgspec.json.encode(choice), indent=2) + b"\n"
    replace_file(path, content, "another place for the bundle")
    return path


def providers_to_try(precision: Precision, features: Iterable[str], plugin: bool) -> tuple[str, ...]:
    """Return the providers that may be fastest for a bundle, the default first."""
    if precision != "fp32" or not plugin:
        return ("cpu",)
    return ("cpu", "openvino", "openvino:bf16") if BF16 in features else ("cpu", "openvino")


def candidates(providers: Iterable[str], threads: int, budget: int) -> list[tuple[str, int, int | None]]:
    """Return (provider, threads, token budget) to compare with the CPU as it is: providers, half the threads, budgets.

    Half of the threads are the cores, where two threads share one. None stands for the provider's default budget.
    """
    others: list[tuple[str, int, int | None]] = [(name, threads, None) for name in providers if name != "cpu"]
    half: list[tuple[str, int, int | None]] = [("cpu", threads // 2, None)] if threads > 1 else []
    return [*others, *half, *(("cpu", threads, int(budget * factor)) for factor in _FACTORS)]


def best(rates: Sequence[Rate], bfloat16: bool) -> Setting:
    """Return the fastest setting; the default, which is the first, unless another is faster by `WORTH`."""
    allowed = (rate for rate in rates if bfloat16 or not rate.setting.provider.endswith("bf16"))
    faster = [rate for rate in allowed if rate.ratio >= WORTH and rate.least > 1]
    return max(faster, key=lambda rate: rate.ratio, default=rates[0]).setting


def tune_bundle(path: Path, seconds: float, bfloat16: bool, reporter: Reporter) -> Choice:
    """Measure a bundle, and return the choice for it."""
    manifest = read_manifest(path)
    if manifest.input != "text":
        raise BundleError(f"{path}: takes vectors, not texts, and has nothing to tune")
    if manifest.layers == (0,):
        raise BundleError(f"{path}: layer 0 is a table, read by one thread, and has nothing to tune")
    providers = providers_to_try(manifest.precision, processor().features, plugin_version() is not None)
    threads = default_threads()
    with ExitStack() as stack:
        try:
            lock_file(stack.enter_context((path / MANIFEST_FILE).open("rb")))
        except BlockingIOError:
            message = f"{path}: another whiten tune measures it, and both would be wrong; start this one after that one"
            raise WhitenError(message) from None
        default = stack.enter_context(_open(path, "cpu", threads, verify=True))
        opened = {_setting("cpu", threads, default): default}
        for provider, count, budget in candidates(providers, threads, default.engine.schedule.budget):
            try:
                embedder = stack.enter_context(_open(path, provider, count, budget))
            except WhitenError as error:
                reporter.warn(f"not measured: {error}")
            else:
                opened[_setting(provider, count, embedder)] = embedder
        texts = enough_texts(default, seconds / (2 * (ROUNDS + 1) * len(opened)))
        reporter.stage(f"{path}: comparing {len(opened)} ways to run it")
        rates = compare(opened, texts)
    return Choice(
        graph=graph_id(manifest),
        machine=this_machine(),
        setting=best(rates, bfloat16),
        measured=rates,
    )


def enough_texts(embedder: Embedder, seconds: float) -> dict[str, list[str]]:
    """Return as many texts of each kind, "short" and "mixed", as one call embeds in about so many seconds."""
    sentences = list(islice(Corpus((BUILTIN_CORPUS,), None, None), 20000))
    generator = random.Random(0)
    generator.shuffle(sentences)
    chosen = {}
    for name, texts in (("short", sentences), ("mixed", passages(sentences, generator))):
        least = _LEAST_TEXTS[name]
        _seconds(embedder, texts[:least])
        count = 4 * least
        rate = count / _seconds(embedder, texts[:count])
        chosen[name] = texts[: max(least, int(rate * seconds))]
    return chosen


def passages(sentences: Sequence[str], generator: random.Random) -> list[str]:
    """Join sentences to passages of 1 to `_MOST_SENTENCES` of them."""
    found, start = [], 0
    while start < len(sentences):
        count = generator.randint(1, _MOST_SENTENCES)
        found.append(" ".join(sentences[start : start + count]))
        start += count
    return found


def compare(embedders: Mapping[Setting, Embedder], texts: Texts) -> tuple[Rate, ...]:
    """Embed texts with each embedder in turn, round after round; ratios are relative to the first embedder."""
    rounds: list[dict[Setting, dict[str, float]]] = []
    for number in range(ROUNDS + 1):
        figures = {
            setting: {kind: len(items) / _seconds(embedder, items) for kind, items in texts.items()}
            for setting, embedder in embedders.items()
        }
        if number:  # the first round creates what is created when it is first used
            rounds.append(figures)
    default = next(iter(embedders))
    return tuple(_rate(setting, [(figures[setting], figures[default]) for figures in rounds]) for setting in embedders)


def _rate(setting: Setting, rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> Rate:
    """Return the medians of a setting's rounds, and those of the ratios to the default's."""
    ratios = sorted(sqrt(mine["short"] / usual["short"] * mine["mixed"] / usual["mixed"]) for mine, usual in rounds)
    short, mixed = (median(mine[kind] for mine, _ in rounds) for kind in ("short", "mixed"))
    least = ratios[min(1, len(ratios) - 1)]
    return Rate(setting=setting, short=short, mixed=mixed, ratio=median(ratios), least=least)


def _open(path: Path, provider: str, threads: int, budget: int | None = None, verify: bool = False) -> Embedder:
    options = SessionOptions((parse_provider(provider),), threads, tuning=Tuning(token_budget=budget))
    return load_bundle(path, options, verify)[1]


def _setting(provider: str, threads: int, embedder: Embedder) -> Setting:
    return Setting(provider=provider, threads=threads, token_budget=embedder.engine.schedule.budget)


def _seconds(embedder: Embedder, texts: Sequence[str]) -> float:
    start = time.perf_counter()
    embedder.embed(texts, embedder.whole(OUTPUT))
    return time.perf_counter() - start
