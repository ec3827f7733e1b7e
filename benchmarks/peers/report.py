"""Write the table and the chart of `benchmarks.peers`.

`python -m benchmarks.peers.report` writes both again from figures.json.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.timing import ratios, spread

PEERS = {
    "fp32": ["st-torch", "st-onnx", "openvino-fp32", "fastembed-fp32", "ctranslate2-fp32"],
    "int8": ["st-onnx-int8", "ctranslate2-int8", "openvino-bf16"],
    "layer0": ["model2vec-layer0"],
}
WORKLOADS = {"short": "short texts/s", "mixed": "mixed texts/s", "one": "one text, ms"}


def ratio(rounds: list[dict[str, Any]], name: str, peer: str, workload: str) -> list[float]:
    """Return how many times as fast `name` was as `peer`, round by round."""
    mine, theirs = ([figures[engine][workload] for figures in rounds] for engine in (name, peer))
    return ratios(theirs, mine) if workload == "one" else ratios(mine, theirs)


def share_of_peak(result: dict[str, Any], precision: str, workload: str) -> float:
    """Return the operations of one second's matrix products, over those that the processor can do."""
    config, tokens = result["config"], result["tokens"][workload]
    width, inner = config["hidden_size"], config["intermediate_size"]
    products = config["num_hidden_layers"] * 2 * (4 * width * width + 2 * width * inner + 2 * tokens * width)
    shares: list[float] = [
        figures[f"whiten-{precision}"][workload] * tokens * products / figures["peak"][precision] / 1e9
        for figures in result["rounds"]
    ]
    return median(shares)


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write table.md and chart.png."""
    lines = [
        "Made by `python -m benchmarks.peers`: each engine in a process of its own, in turn, medians (lowest to "
        "highest) of interleaved rounds.",
    ]
    for model, result in results.items():
        rounds = result["rounds"]
        lengths = ", ".join(f"{name} {tokens:.0f}" for name, tokens in result["tokens"].items())
        peaks = (f"{name} {median(figures['peak'][name] for figures in rounds):.0f} GOP/s" for name in ("fp32", "int8"))
        lines += [
            f"\n## {model}\n",
            f"{result['machine']}.\n",
            f"{len(rounds)} rounds, {result['threads']} threads; mean tokens of a text: {lengths}. "
            f"The processor's peak: {', '.join(peaks)}.\n",
            "| engine | " + " | ".join(WORKLOADS.values()) + " | peak RSS, MB | cold start, s | difference |",
            "|---" * (len(WORKLOADS) + 4) + "|",
        ]
        for engine in (name for name in rounds[0] if name != "peak"):
            cells = [_cell([figures[engine][workload] for figures in rounds]) for workload in WORKLOADS]
            cells.append(f"{median(figures[engine]['peak_mb'] for figures in rounds):.0f}")
            cold = [figures[engine]["cold_s"] for figures in rounds if "cold_s" in figures[engine]]
            cells.append(_cell(cold) if cold else "")
            difference = result["differences"].get(engine)
            cells.append("" if difference is None else f"{difference:.0e}")
            lines.append(f"| {engine} | " + " | ".join(cells) + " |")
        lines.append("\nDifference: worst distance from whiten-fp32's vectors, over their norm.\n")
        lines += ["| | best peer | ratio | share of the processor's peak |", "|---|---|---|---|"]
        for precision, peers in PEERS.items():
            name = f"whiten-{precision}"
            for workload in WORKLOADS:
                present = [peer for peer in peers if peer in rounds[0] and name in rounds[0]]
                if not present:
                    continue
                best = min(present, key=lambda peer: median(ratio(rounds, name, peer, workload)))
                no_share = precision == "layer0" or workload == "one"
                cell = "" if no_share else f"{100 * share_of_peak(result, precision, workload):.0f} %"
                lines.append(f"| {name}, {workload} | {best} | {_cell(ratio(rounds, name, best, workload))} | {cell} |")
    (out / "table.md").write_text("\n".join(lines) + "\n")
    _chart(results, out / "chart.png")


def _chart(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(results), len(WORKLOADS), figsize=(13, 3.6 * len(results)), squeeze=False)
    for row, (model, result) in zip(axes, results.items(), strict=True):
        engines = [name for name in result["rounds"][0] if name != "peak" and not name.endswith("layer0")][::-1]
        for axis, (workload, title) in zip(row, WORKLOADS.items(), strict=True):
            values = [[figures[name][workload] for figures in result["rounds"]] for name in engines]
            middle = [median(value) for value in values]
            below = [center - min(value) for center, value in zip(middle, values, strict=True)]
            above = [max(value) - center for center, value in zip(middle, values, strict=True)]
            colors = ["#1b6ca8" if name.startswith("whiten") else "#b8bec4" for name in engines]
            axis.barh(engines, middle, xerr=[below, above], color=colors, error_kw={"lw": 0.8})
            axis.set_title(f"{model}: {title}" + (" (shorter is better)" if workload == "one" else ""), fontsize=10)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _cell(values: list[float]) -> str:
    return spread(values, 0 if median(values) >= 100 else 2)


if __name__ == "__main__":
    here = Path(__file__).parent
    write_report(json.loads((here / "figures.json").read_text()), here)
