"""Draw texts a second of each engine, from the table of engines."""

import re

from support.charts.svg import bar, label, picture

ENGINES = {
    "whiten-int8": "whiten, int8",
    "openvino-int8": "OpenVINO, int8",
    "ctranslate2-int8": "CTranslate2, int8",
    "openvino-bf16": "OpenVINO, bfloat16",
    "whiten-fp32": "whiten",
    "st-onnx-int8": "sentence-transformers, onnxruntime, int8",
    "ctranslate2-fp32": "CTranslate2",
    "openvino-fp32": "OpenVINO",
    "st-onnx": "sentence-transformers, onnxruntime",
    "st-torch": "sentence-transformers, PyTorch",
    "fastembed-fp32": "fastembed",
}
"""Names of the engines in the chart by those in the table."""

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 740, 300, 205, 24, 40


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
    """Return the chart of a table as SVG, the fastest engine first."""
    worst = worst_cosines(table)
    figures = sorted(speeds(table).items(), key=lambda row: -row[1])
    title = "Short texts a second: all-MiniLM-L6-v2, 2 threads of an AMD EPYC"
    elements = [label(16, 25, title, "title")]
    for number, (name, speed) in enumerate(figures):
        y = _TOP + _ROW * number
        length = (_WIDTH - _LEFT - _RIGHT) * speed / figures[0][1]
        exactness = f" (worst cosine {worst[name]})" if name.endswith("int8") else ""
        elements += [
            label(_LEFT - 8, y + 14, ENGINES[name], anchor="end"),
            bar(_LEFT, y + 2, length, 16, "own" if name.startswith("whiten") else "other"),
            label(round(_LEFT + length + 6), y + 14, f"{speed:,.0f}{exactness}"),
        ]
    return picture(title, _WIDTH, _TOP + _ROW * len(figures) + 14, elements)
