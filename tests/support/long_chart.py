"""Draw the chart of long texts from their table: `PYTHONPATH=tests python tests/support/long_chart.py`."""

import re
from collections.abc import Mapping

from support.chart import ROOT, STYLE

CHART = ROOT / "docs" / "images" / "long-texts.svg"
TABLE = ROOT / "benchmarks" / "long_texts" / "table.md"

NETWORKS = {"modernbert": "ModernBERT", "xlm-roberta": "XLM-RoBERTa, 8,194 positions"}
"""Names of the networks in the chart by those in the table."""

ENGINES = {"PyTorch fp32": "PyTorch", "whiten fp32": "whiten"}

_WIDTH, _LEFT, _PANEL, _APART, _TOP, _HEIGHT, _ROW = 740, 40, 240, 130, 64, 110, 180
_LINES = (
    ".line{fill:none;stroke-width:2.5}.line.own{stroke:#1f6f9f}.line.other{stroke:#8b98a5}.axis{stroke:#8b98a5;"
    "stroke-opacity:.6}.small{font-size:12px}@media (prefers-color-scheme:dark){.line.own{stroke:#69b7e4}"
    ".line.other{stroke:#738191}}"
)

Figures = Mapping[int, tuple[float, float]]
"""Seconds and MB by the number of tokens."""


def figures(table: str) -> dict[tuple[str, int], dict[str, Figures]]:
    """Return the figures of the chart's engines by network and number of layers, in the order of the table."""
    pattern = r"^\| ([\w-]+) \| (\d+) \| (\d+) \| ([\w ]+) \| ([\d.]+) \| (\d+) \|"
    rows = [row for row in re.findall(pattern, table, re.MULTILINE) if row[0] in NETWORKS and row[3] in ENGINES]
    found: dict[tuple[str, int], dict[str, dict[int, tuple[float, float]]]] = {}
    for network, layers, tokens, engine, milliseconds, megabytes in rows:
        engines = found.setdefault((network, int(layers)), {})
        engines.setdefault(engine, {})[int(tokens)] = (float(milliseconds) / 1000, float(megabytes))
    return {key: dict(engines) for key, engines in found.items()}


def draw(table: str) -> str:
    """Return the chart of a table as SVG: a row for each network, with seconds on the left and memory on the right."""
    networks = sorted(figures(table).items(), key=lambda item: list(NETWORKS).index(item[0][0]))
    height = _TOP + _ROW * len(networks) - 18
    title = "One text, 2 threads of an AMD EPYC: seconds and peak memory by tokens"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}{_LINES}</style>",
        f'<rect x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="10" class="ground"/>',
        f'<text x="16" y="25" class="title">{title}</text>',
    ]
    for number, ((network, layers), engines) in enumerate(networks):
        y = _TOP + _ROW * number
        name = f"{NETWORKS[network]}, {layers} layers"
        for index, unit in enumerate(("seconds", "MB")):
            x = _LEFT + index * (_PANEL + _APART)
            lines.append(f'<text x="{x}" y="{y - 8}" class="small">{name}: {unit}</text>')
            lines += _panel(x, y, {engine: {t: v[index] for t, v in row.items()} for engine, row in engines.items()})
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(left: int, top: int, engines: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Draw the lines of one quantity, each named with its last value."""
    tokens = sorted({number for values in engines.values() for number in values})
    largest = max(value for values in engines.values() for value in values.values())
    bottom = top + _HEIGHT
    places = {number: left + 14 + index * (_PANEL - 28) / (len(tokens) - 1) for index, number in enumerate(tokens)}
    drawn = [f'<line x1="{left}" y1="{bottom}" x2="{left + _PANEL}" y2="{bottom}" class="axis"/>']
    drawn += [
        f'<text x="{x:.0f}" y="{bottom + 17}" text-anchor="middle" class="small">{number:,}</text>'
        for number, x in places.items()
    ]
    ends = {name: bottom - _HEIGHT * values[tokens[-1]] / largest for name, values in engines.items()}
    for name, values in engines.items():
        points = " ".join(f"{places[at]:.0f},{bottom - _HEIGHT * value / largest:.1f}" for at, value in values.items())
        kind = "own" if name.startswith("whiten") else "other"
        drawn.append(f'<polyline points="{points}" class="line {kind}"/>')
    label = 0.0
    for name, y in sorted(ends.items(), key=lambda item: item[1]):
        label = max(y + 4, label + 16)
        value = engines[name][tokens[-1]]
        text = f"{ENGINES[name]} {value:,.0f}" if value >= 100 else f"{ENGINES[name]} {value:.1f}"
        drawn.append(f'<text x="{left + _PANEL - 8}" y="{label:.0f}" class="small">{text}</text>')
    return drawn


if __name__ == "__main__":
    CHART.write_text(draw(TABLE.read_text("utf-8")), "utf-8")
