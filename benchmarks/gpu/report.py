"""Write the table of `benchmarks.gpu` from its figures."""

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.timing import median_ratio

OURS = "whiten fp16"
WORKLOADS = ("short", "mixed", "long")


def write_table(results: dict[str, Any], path: Path) -> None:
    """Write all figures as markdown."""
    lines = [f"# On a GPU: {results['card']}", ""]
    lines += ["Made by `python -m benchmarks.gpu`. Medians of interleaved rounds; every engine with the size of "]
    lines[-1] += "batches that is best for it."
    lines += [f"Processor: {results['machine']}.", ""]
    lines += [f"A matrix product in half precision reaches {results['peak_teraflops']:.3g} TFLOP/s.", ""]
    for model, figures in results["models"].items():
        lines += _of_model(model, figures, results["peak_teraflops"])
    path.write_text("\n".join(lines) + "\n")


def _of_model(model: str, figures: dict[str, Any], peak: float) -> list[str]:
    rounds, tokens = figures["rounds"], figures["tokens"]
    rates = {
        name: {kind: median(found[name][kind] for found in rounds) for kind in rounds[0][name]} for name in rounds[0]
    }
    lines = [f"## {model}, {len(rounds)} rounds", ""]
    heads = [f"{kind} ({tokens[kind]:.0f} tokens), texts/s" for kind in WORKLOADS]
    lines += [f"| | {' | '.join(heads)} | share of the peak, long | one text, ms | 1 - worst cosine to fp32 |"]
    lines += ["|---" * (len(heads) + 4) + "|"]
    for name, found in rates.items():
        cells = [f"{found[kind]:.0f}" if kind in found else "" for kind in WORKLOADS]
        share = found.get("long", 0) * figures["operations_of_long"] / peak / 1e12
        cells += [f"{100 * share:.0f} %" if share else "", f"{found['one']:.2f}"]
        cells += [f"{1 - figures['cosines'][name]:.1e}" if name in figures["cosines"] else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    others = [name for name in rates if not name.startswith("whiten")]
    ratios = [f"{kind} {min(_ratio(rounds, name, kind) for name in others):.2f}" for kind in WORKLOADS]
    lines += ["", f"{OURS} against the best of the others, median of the rounds' ratios: {', '.join(ratios)}.", ""]
    lines += ["What the runtime chooses, and other choices (fp16, texts/s):", ""]
    lines += [f"| | {' | '.join(WORKLOADS)} |", "|---" * (len(WORKLOADS) + 1) + "|"]
    for name, found in figures["choices"].items():
        lines.append(f"| {name} | {' | '.join(f'{found[kind]:.0f}' for kind in WORKLOADS)} |")
    return [*lines, ""]


def _ratio(rounds: list[dict[str, dict[str, float]]], other: str, kind: str) -> float:
    return median_ratio([found[OURS][kind] for found in rounds], [found[other][kind] for found in rounds])
