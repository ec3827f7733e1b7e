"""Write the table and the chart of `benchmarks.peers`.

`python -m benchmarks.peers.report` writes both again from figures.json.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.timing import ratios, spread

Model = dict[str, Any]
"""Figures of one model on one machine, as in figures.json."""

PEERS = {
    "fp32": ["st-torch", "st-onnx", "openvino-fp32", "fastembed-fp32", "ctranslate2-fp32"],
    "int8": ["st-onnx-int8", "ctranslate2-int8", "openvino-bf16"],
    "bf16": ["st-onnx-int8", "ctranslate2-int8", "openvino-bf16"],
    "layer0": ["model2vec-layer0"],
}
WORKLOADS = {"short": "short texts/s", "mixed": "mixed texts/s", "long": "long texts/s", "one": "one text, ms"}


def ratio(rounds: list[dict[str, Any]], name: str, peer: str, workload: str) -> list[float]:
    """Return how many times as fast `name` was as `peer`, round by round."""
    mine, theirs = ([figures[engine][workload] for figures in rounds] for engine in (name, peer))
    return ratios(theirs, mine) if workload == "one" else ratios(mine, theirs)


def share_of_peak(result: Model, precision: str, workload: str) -> float:
    """Return the operations of one second's matrix products, over those that the processor can do."""
    config, tokens = result["config"], result["tokens"][workload]
    width, inner = config["hidden_size"], config["intermediate_size"]
    products = config["num_hidden_layers"] * 2 * (4 * width * width + 2 * width * inner + 2 * tokens * width)
    shares: list[float] = [
        figures[f"whiten-{precision}"][workload] * tokens * products / figures["peak"][precision] / 1e9
        for figures in result["rounds"]
    ]
    return median(shares)


def measured_workloads(result: Model) -> dict[str, str]:
    """Return the workloads of a result, with their titles; older results lack some."""
    return {name: title for name, title in WORKLOADS.items() if name in result["tokens"]}


def report(results: dict[str, dict[str, Model]]) -> str:
    """Return the content of table.md.

    Args:
        results: results by machine and model.
    """
    lines = [
        "Made by `python -m benchmarks.peers`: each engine in a process of its own, in turn, medians (lowest to "
        "highest) of interleaved rounds.",
    ]
    for place, models in results.items():
        lines.append(f"\n## {place}")
        for model, result in models.items():
            lines += [*_speeds(model, result), *_ratios(result)]
    return "\n".join(lines) + "\n"


def write_report(results: dict[str, dict[str, Model]], out: Path) -> None:
    """Write table.md and chart.png.

    Args:
        results: results by machine and model.
        out: folder of both files.
    """
    (out / "table.md").write_text(report(results))
    _chart(results, out / "chart.png")


def _speeds(model: str, result: Model) -> list[str]:
    rounds, titles = result["rounds"], measured_workloads(result)
    lengths = ", ".join(f"{name} {tokens:.0f}" for name, tokens in result["tokens"].items())
    peaks = (f"{name} {median(figures['peak'][name] for figures in rounds):.0f} GOP/s" for name in ("fp32", "int8"))
    lines = [
        f"\n### {model}\n",
        f"{result['machine']}.\n",
        f"{len(rounds)} rounds, {result['threads']} threads; mean tokens of a text: {lengths}. "
        f"The processor's peak: {', '.join(peaks)}.\n",
        "| engine | " + " | ".join(titles.values()) + " | peak RSS, MB | RSS, MB | cold start, s | difference |",
        "|---" * (len(titles) + 5) + "|",
    ]
    for engine in (name for name in rounds[0] if name != "peak"):
        cells = [_cell([figures[engine][workload] for figures in rounds]) for workload in titles]
        for field in ("peak_mb", "rss_mb"):
            sizes = [figures[engine][field] for figures in rounds if field in figures[engine]]
            cells.append(f"{median(sizes):.0f}" if sizes else "")
        cold = [figures[engine]["cold_s"] for figures in rounds if "cold_s" in figures[engine]]
        cells.append(_cell(cold) if cold else "")
        difference = result["differences"].get(engine)
        cells.append("" if difference is None else f"{difference:.0e}")
        lines.append(f"| {engine} | " + " | ".join(cells) + " |")
    lines.append(
        "\nPeak RSS: at the end of the short texts. RSS: after all workloads, single texts last. Difference: worst "
        "distance from whiten-fp32's vectors, over their norm.\n"
    )
    return lines


def _ratios(result: Model) -> list[str]:
    rounds = result["rounds"]
    lines = ["| | best peer | ratio | share of the processor's peak |", "|---|---|---|---|"]
    for precision, peers in PEERS.items():
        name = f"whiten-{precision}"
        present = [peer for peer in peers if peer in rounds[0] and name in rounds[0]]
        for workload in measured_workloads(result) if present else ():
            best = min(present, key=lambda peer: median(ratio(rounds, name, peer, workload)))
            known = precision in rounds[0]["peak"] and workload != "one"
            cell = f"{100 * share_of_peak(result, precision, workload):.0f} %" if known else ""
            lines.append(f"| {name}, {workload} | {best} | {_cell(ratio(rounds, name, best, workload))} | {cell} |")
    return lines


def _chart(results: dict[str, dict[str, Model]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    charts = [(place, model, result) for place, models in results.items() for model, result in models.items()]
    figure, axes = pyplot.subplots(len(charts), len(WORKLOADS), figsize=(16, 3.6 * len(charts)), squeeze=False)
    for row, (place, model, result) in zip(axes, charts, strict=True):
        engines = [name for name in result["rounds"][0] if name != "peak" and not name.endswith("layer0")][::-1]
        row[0].set_ylabel(place, fontsize=8)
        for axis, (workload, title) in zip(row, WORKLOADS.items(), strict=True):
            if workload not in result["tokens"]:
                axis.set_visible(False)
                continue
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
