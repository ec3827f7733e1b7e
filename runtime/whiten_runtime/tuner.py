"""Measure which provider, number of threads and token budget embed texts fastest with a bundle on this machine."""

import random
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from math import sqrt
from pathlib import Path
from statistics import median
from typing import TypeVar

from whiten_runtime.bundle.graph_names import OUTPUT
from whiten_runtime.bundle.manifest import Manifest, Precision, read_manifest
from whiten_runtime.errors import BundleError, WhitenError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.tuned import FORMAT, Choice, Machine, Rate, Setting, graph_id
from whiten_runtime.ort.openvino import PLUGIN, plugin_version
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

Name = TypeVar("Name", bound=Hashable)

Texts = Mapping[str, Sequence[str]]


def providers_to_try(precision: Precision, features: Iterable[str], plugin: bool) -> tuple[str, ...]:
    """Return the providers that may be fastest for a bundle, the default first."""
    if precision != "fp32" or not plugin:
        return ("cpu",)
    return ("cpu", "openvino", "openvino:bf16") if BF16 in features else ("cpu", "openvino")


def first_candidates(providers: Iterable[str], threads: int) -> tuple[tuple[str, int], ...]:
    """Return (provider, threads) of the first comparison: each provider with all threads, the CPU with half too.

    Half of them are the cores, where two threads share one.
    """
    whole = tuple((name, threads) for name in providers)
    return (*whole, ("cpu", threads // 2)) if threads > 1 else whole


def other_budgets(setting: Setting) -> tuple[Setting, ...]:
    """Return a setting with other token budgets."""
    return tuple(
        Setting(provider=setting.provider, threads=setting.threads, token_budget=int(setting.token_budget * factor))
        for factor in _FACTORS
    )


def best(rates: Sequence[Rate], bfloat16: bool) -> Setting:
    """Return the fastest setting; the default, which is the first, unless another is faster by `WORTH`."""
    allowed = (rate for rate in rates if bfloat16 or not rate.setting.provider.endswith("bf16"))
    faster = [rate for rate in allowed if rate.ratio >= WORTH and rate.least > 1]
    return max(faster, key=lambda rate: rate.ratio, default=rates[0]).setting


def tune(path: Path, seconds: float, bfloat16: bool, reporter: Reporter) -> Choice:
    """Measure a bundle, and return the choice for it."""
    manifest = read_manifest(path)
    if manifest.input != "text":
        raise BundleError(f"{path}: takes vectors, not texts, and has nothing to tune")
    if manifest.layers == (0,):
        raise BundleError(f"{path}: layer 0 is a table, read by one thread, and has nothing to tune")
    providers = providers_to_try(manifest.precision, processor().features, plugin_version() is not None)
    first = first_candidates(providers, default_threads())
    runs = 2 * (ROUNDS + 1) * (len(first) + 1 + len(_FACTORS))
    with ExitStack() as stack:
        default = stack.enter_context(_open(path, *first[0], verify=True))
        others = {pair: one for pair in first[1:] if (one := _opened(path, pair, stack, reporter)) is not None}
        texts = enough_texts(default, seconds / runs)
        reporter.stage(f"{path}: comparing {len(others) + 1} ways to run it, then token budgets")
        opened = {_setting(*pair, each): each for pair, each in ({first[0]: default} | others).items()}
        found = _rates(compare(opened, texts))
    chosen = best(found, bfloat16)
    with ExitStack() as stack:
        settings = dict.fromkeys((found[0].setting, *other_budgets(chosen)))
        opened = {
            one: stack.enter_context(_open(path, one.provider, one.threads, one.token_budget)) for one in settings
        }
        more = _rates(compare(opened, texts))
    rates = (*found, *more[1:])
    return _choice(manifest, best(rates, bfloat16), rates)


def _opened(path: Path, pair: tuple[str, int], stack: ExitStack, reporter: Reporter) -> Embedder | None:
    """Open a bundle as a candidate; one that does not work here is reported and left out."""
    try:
        return stack.enter_context(_open(path, *pair))
    except WhitenError as error:
        reporter.warn(f"not measured: {error}")
        return None


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


@dataclass(frozen=True)
class Speed:
    """Holds what was measured of one candidate; the fields are those of `Rate`."""

    short: float
    mixed: float
    ratio: float
    least: float


def compare(embedders: Mapping[Name, Embedder], texts: Texts) -> dict[Name, Speed]:
    """Embed texts with each embedder in turn, round after round, and return what was measured."""
    rounds: list[dict[Name, dict[str, float]]] = []
    for number in range(ROUNDS + 1):
        figures = {
            name: {kind: len(items) / _seconds(embedder, items) for kind, items in texts.items()}
            for name, embedder in embedders.items()
        }
        if number:  # the first round creates what is created when it is first used
            rounds.append(figures)
    default = next(iter(embedders))
    return {name: _speed([figures[name] for figures in rounds], [one[default] for one in rounds]) for name in embedders}


def _speed(rounds: Sequence[Mapping[str, float]], default: Sequence[Mapping[str, float]]) -> Speed:
    """Return the medians of a candidate's rounds, and those of the ratios to another candidate's."""
    ratios = sorted(
        sqrt(mine["short"] / usual["short"] * mine["mixed"] / usual["mixed"])
        for mine, usual in zip(rounds, default, strict=True)
    )
    short, mixed = (median(figures[kind] for figures in rounds) for kind in ("short", "mixed"))
    return Speed(short, mixed, median(ratios), ratios[min(1, len(ratios) - 1)])


def compare_bundles(choices: Mapping[Path, Choice], seconds: float) -> dict[Path, Speed]:
    """Compare bundles of one model, each with its choice; ratios are relative to the first."""
    with ExitStack() as stack:
        opened = {
            path: stack.enter_context(_open(path, one.provider, one.threads, one.token_budget))
            for path, one in ((path, choice.setting) for path, choice in choices.items())
        }
        texts = enough_texts(next(iter(opened.values())), seconds / (2 * (ROUNDS + 1) * len(opened)))
        return compare(opened, texts)


def _open(path: Path, provider: str, threads: int, budget: int | None = None, verify: bool = False) -> Embedder:
    options = SessionOptions((parse_provider(provider),), threads, tuning=Tuning(token_budget=budget))
    return load_bundle(path, options, verify)[1]


def _rates(speeds: Mapping[Setting, Speed]) -> list[Rate]:
    return [
        Rate(setting=setting, short=one.short, mixed=one.mixed, ratio=one.ratio, least=one.least)
        for setting, one in speeds.items()
    ]


def _setting(provider: str, threads: int, embedder: Embedder) -> Setting:
    """Return the setting of an embedder that was opened with the default token budget."""
    return Setting(provider=provider, threads=threads, token_budget=embedder.engine.schedule.budget)


def _seconds(embedder: Embedder, texts: Sequence[str]) -> float:
    start = time.perf_counter()
    embedder.embed(texts, embedder.whole(OUTPUT))
    return time.perf_counter() - start


def _choice(manifest: Manifest, setting: Setting, rates: tuple[Rate, ...]) -> Choice:
    return Choice(
        format=FORMAT,
        bundle=manifest.name,
        graph=graph_id(manifest),
        machine=Machine.here(),
        versions=_versions(),
        setting=setting,
        measured=rates,
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in ("whiten", "onnxruntime", PLUGIN):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
