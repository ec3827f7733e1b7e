"""Draw texts a second of each engine, from the table of engines."""

import re
from collections.abc import Mapping

from support.charts.svg import bar, label, picture

ENGINES = {
    "whiten-int8": "whiten",
    "openvino-int8": "OpenVINO",
    "ctranslate2-int8": "CTranslate2",
    "openvino-bf16": "OpenVINO",
    "whiten-fp32": "whiten",
    "st-onnx-int8": "sentence-transformers, onnxruntime",
    "ctranslate2-fp32": "CTranslate2",
    "openvino-fp32": "OpenVINO",
    "st-onnx": "sentence-transformers, onnxruntime",
    "st-torch": "sentence-transformers, PyTorch",
    "fastembed-fp32": "fastembed",
}
"""Names of the engines in the chart by those in the table."""

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _GAP = 740, 290, 205, 24, 40, 10


def speeds(table: str) -> dict[str, float]:
    """Return texts a second, short ones, of the first table, by engine."""
    first = table.partition("**minilm**")[2].partition("**bert")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", first, re.MULTILINE)
    return {name: float(speed) for name, speed in rows if name in ENGINES}


def worst_cosines(table: str) -> dict[str, str]:
    """Return the worst cosine to whiten's float32 vectors, as the first table writes it, by engine."""
    first = table.partition("**minilm**")[2].partition("**bert")[0]
    rows = re.findall(r"^\| ([\w-]+) \|.*\| (\d\.\d+) \|$", first, re.MULTILINE)
    return {name: cosine for name, cosine in rows if name in ENGINES}


def draw(table: str) -> str:
    """Return the chart of a table as SVG, by precision, the fastest engine of each first."""
    worst, figures = worst_cosines(table), speeds(table)
    largest = max(figures.values())
    title = "Short texts a second: all-MiniLM-L6-v2, 2 threads of an Intel Xeon with VNNI"
    elements, y = [label(16, 25, title, "title")], _TOP
    for precision, names in _by_precision(figures).items():
        elements.append(label(16, y + 14, precision, "small faint"))
        for name in names:
            length = (_WIDTH - _LEFT - _RIGHT) * figures[name] / largest
            exactness = "" if precision == "float32" else f" (worst cosine {worst[name]})"
            elements += [
                label(_LEFT - 8, y + 14, ENGINES[name], anchor="end"),
                bar(_LEFT, y + 2, length, 16, "own" if name.startswith("whiten") else "other"),
                label(round(_LEFT + length + 6), y + 14, f"{figures[name]:,.0f}{exactness}"),
            ]
            y += _ROW
        y += _GAP
    return picture(title, _WIDTH, y + 14 - _GAP, elements)


def _by_precision(figures: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the engines of each precision, the fastest first."""
    names = sorted(figures, key=lambda name: -figures[name])
    groups = {
        "int8": [name for name in names if name.endswith("int8")],
        "bfloat16": [name for name in names if name.endswith("bf16")],
        "float32": [name for name in names if not name.endswith(("int8", "bf16"))],
    }
    return {precision: group for precision, group in groups.items() if group}
