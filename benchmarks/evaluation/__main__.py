"""Draw how whitening changes similarity, layer by layer, and classification, from results of `whiten`.

whiten sweep minilm --data DIR --out sweeps/minilm
whiten eval classification BUNDLE --data DIR --whitening none --json > none.json
whiten eval classification BUNDLE --data DIR --whitening target --json > target.json
python -m benchmarks.evaluation sweeps/minilm/sweep.json none.json target.json benchmarks/evaluation/chart.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {"none": "#8d99ae", "target": "#d1495b"}
NAMES = {"none": "not whitened", "target": "whitened"}


def draw(sweep: Path, none: Path, target: Path, out: Path) -> None:
    """Draw both charts, and write them as one picture."""
    figure = Figure(figsize=(10.5, 3.9), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_layers(left, json.loads(sweep.read_bytes()))
    draw_classification(
        right, {name: json.loads(path.read_bytes()) for name, path in zip(COLOURS, (none, target), strict=True)}
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, axis="y", color="#e5e5ea")
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(out)


def draw_layers(axes: Any, sweep: dict[str, Any]) -> None:
    """Draw the similarity of each single layer, whitened and not."""
    for kind, colour in COLOURS.items():
        single = {
            score["layers"][0]: score["average"]
            for score in sweep["scores"]
            if (score["pooling"], score["whitening"], len(score["layers"])) == ("mean", kind, 1)
        }
        axes.plot(list(single), list(single.values()), marker="o", markersize=4, color=colour, label=NAMES[kind])
        for layer, value in single.items():
            place = (0, 6) if value == max(averages(sweep, layer)) else (0, -12)
            axes.annotate(
                f"{value:.1f}", (layer, value), xytext=place, textcoords="offset points", ha="center", fontsize=7
            )
    axes.margins(y=0.15)
    axes.set_title("Similarity: whitening lifts what was not tuned for it", fontsize=10, loc="left")
    axes.set_xlabel(f"layer of {sweep['model']} (6: fine-tuned for similarity)", fontsize=9)
    axes.set_ylabel(f"Spearman x 100, mean of {', '.join(sweep['tasks'])}", fontsize=7)


def averages(sweep: dict[str, Any], layer: int) -> list[float]:
    """Return the average scores of a single layer, whitened and not."""
    return [score["average"] for score in sweep["scores"] if score["pooling"] == "mean" and score["layers"] == [layer]]


def draw_classification(axes: Any, found: dict[str, Any]) -> None:
    """Draw the accuracy of each task, whitened and not."""
    names = [task["task"] for task in found["none"]["bundles"][0]["tasks"]]
    for number, (kind, colour) in enumerate(COLOURS.items()):
        values = [task["accuracy"] for task in found[kind]["bundles"][0]["tasks"]]
        places = [place + 0.38 * (number - 0.5) for place in range(len(names))]
        axes.bar(places, values, 0.36, color=colour, label=NAMES[kind])
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.1f}", (place, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7
            )
    axes.set_ylim(30, 104)
    axes.set_xticks(range(len(names)), names)
    axes.set_title("Classification: whitening lowers accuracy", fontsize=10, loc="left")
    axes.set_ylabel("accuracy, % (axis from 30)", fontsize=8)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, content in (
        ("sweep", "sweep.json of `whiten sweep`"),
        ("none", "classification, not whitened"),
        ("target", "classification, whitened on the tasks' sentences"),
        ("out", "the picture"),
    ):
        parser.add_argument(name, type=Path, help=content)
    draw(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
