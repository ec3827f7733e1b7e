"""Draw seconds and memory of a long text by its length, from the table of long texts."""

import re

from support.charts.svg import bar, label, picture

_NETWORKS = {"modernbert": "ModernBERT", "xlm-roberta": "XLM-RoBERTa, 8,194 positions"}
"""Networks in the picture: one with windows, and one where every token sees all others."""

_ENGINES = {"whiten fp32": "whiten", "OpenVINO fp32": "OpenVINO", "PyTorch fp32": "PyTorch"}
_WIDTH, _HALF, _ROW = 740, 215, 18


def measured(table: str) -> list[tuple[str, int, str, float, int]]:
    """Return the rows of the picture's networks and engines: network with layers, tokens, engine, seconds, MB."""
    row = r"^\| ([\w-]+) \| (\d+) \| (\d+) \| ([\w ]+) \| ([\d.]+) \| (\d+) \|"
    return [
        (f"{_NETWORKS[network]}, {layers} layers", int(tokens), _ENGINES[engine], float(ms) / 1000, int(size))
        for network, layers, tokens, engine, ms, size in re.findall(row, table, re.MULTILINE)
        if network in _NETWORKS and engine in _ENGINES
    ]


def draw(table: str) -> str:
    """Return bars of seconds on the left and of memory on the right, for each network, length and engine."""
    rows = measured(table)
    slowest, largest = max(row[3] for row in rows), max(row[4] for row in rows)
    title = "A long text: seconds, and memory of the process (float32, 2 threads)"
    elements = [label(16, 25, title, "title")]
    y = 40
    shown = ("", 0)
    for network, tokens, engine, seconds, size in rows:
        if (network, tokens) != shown:
            shown = (network, tokens)
            elements.append(label(16, y + 16, f"{network}: {tokens:,} tokens", "small title"))
            y += 22
        kind = "own" if engine.startswith("whiten") else "other"
        for left, part, words in ((130, seconds / slowest, f"{seconds:.1f} s"), (440, size / largest, f"{size:,} MB")):
            elements.append(bar(left, y, max(2.0, _HALF * part), 14, kind))
            elements.append(label(round(left + 6 + _HALF * part), y + 12, words, "small"))
        elements.append(label(122, y + 12, engine, "small", "end"))
        y += _ROW
    return picture(title, _WIDTH, y + 12, elements)
