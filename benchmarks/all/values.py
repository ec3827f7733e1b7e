"""Give the figures of sentences their names and their printed form."""

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.all.tables import rates
from benchmarks.timing import median_ratio

_ENGINES = {"minilm": "whiten-fp32", "minilm_int8": "whiten-int8", "torch": "st-torch", "fastembed": "fastembed-fp32"}


def values(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of all sentences by name, rounded as they are printed.

    Raises:
        ValueError: a measurement is missing.
    """
    missing = [name for name in ("export", "sts", "memory", "precision", "speed") if not figures.get(name)]
    missing += [f"speed of {model}" for model in ("minilm", "bert-base") if model not in figures.get("speed", {})]
    if missing:
        raise ValueError(f"the figures lack {', '.join(missing)}; measure with --sts DIR and both models")
    return _export(figures) | _memory(figures["memory"]) | _precision(figures["precision"]) | _speed(figures["speed"])


def _export(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the README's own export: seconds to the next 5, sentences, averages of the similarity tasks."""
    return {
        "export_seconds": f"{5 * math.ceil(figures['export']['seconds'] / 5)}",
        "export_sentences": f"{figures['export']['sentences']:,}",
        "sts_before": f"{figures['sts']['none']['average']:.1f}",
        "sts_after": f"{figures['sts']['bundle']['average']:.1f}",
    }


def _memory(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return megabytes of processes, and their growth in whole per cent, rounded up."""
    found: dict[str, str] = {}
    for precision, uses in figures.items():
        found |= {
            f"{precision}_imported_mb": f"{uses['one']['imported']:.0f}",
            f"{precision}_loaded_mb": f"{uses['one']['loaded']:.0f}",
            f"{precision}_peak_one_mb": f"{uses['one']['peak']:.0f}",
            f"{precision}_peak_mb": f"{uses['many']['peak']:.0f}",
            f"{precision}_growth": f"{100 * max(0, uses['long']['growth']):.1f}",
        }
    largest = max(100 * uses["long"]["growth"] for uses in figures.values())
    return found | {"growth": f"{max(1, math.ceil(largest))}"}


def _precision(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return rates, ratios to float32 and megabytes of bundles by precision."""
    found: dict[str, str] = {}
    for name, of in figures.items():
        found |= {
            f"{name}_rate": f"{of['texts_per_s']:.0f}",
            f"{name}_ratio": f"{of['ratio']:.2f}",
            f"{name}_one_ms": f"{of['one_text_ms']:.2f}",
            f"{name}_one_ratio": f"{of['one_text_ratio']:.2f}",
            **_ends(f"{name}_ratio", of["ratios"]),
            **_ends(f"{name}_one_ratio", of["one_text_ratios"]),
            f"{name}_mb": f"{of['graph_mb']:.1f}",
        }
    return found


def _ends(name: str, ratios: list[float]) -> dict[str, str]:
    """Return the lowest and the highest of the rounds' ratios."""
    return {f"{name}_least": f"{min(ratios):.2f}", f"{name}_most": f"{max(ratios):.2f}"}


def _speed(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the gain of int8 on short texts, and the speed and peak memory of engines on all-MiniLM-L6-v2."""
    minilm = results["minilm"]
    gains = [median_ratio(rates(one, "whiten-int8"), rates(one, "whiten-fp32")) for one in results.values()]
    return {
        "int8_least": f"{min(gains):.1f}",
        "int8_most": f"{max(gains):.1f}",
        "layer0_rate": f"{median(rates(minilm, 'whiten-layer0')):,.0f}",
        "model2vec_rate": f"{median(rates(minilm, 'model2vec-layer0')):,.0f}",
        **{f"{name}_rate": f"{median(rates(minilm, engine)):.0f}" for name, engine in _ENGINES.items()},
        **{f"{name}_rss_mb": f"{median(rates(minilm, engine, 'peak_mb')):.0f}" for name, engine in _ENGINES.items()},
    }
