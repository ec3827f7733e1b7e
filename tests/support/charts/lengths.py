"""Draw seconds and memory of a long text by its length, from the table of long texts."""

import re

from support.charts.svg import bar, label, picture

_NETWORKS = {"modernbert": "ModernBERT", "bert": "BERT, 8,192 positions"}
_ENGINES = {"whiten fp32": "whiten", "whiten int8": "whiten, int8", "PyTorch fp32": "PyTorch"}
_WIDTH, _HALF, _ROW = 740, 215, 18


def measured(table: str) -> list[tuple[str, int, str, float, int]]:
    """Return the rows of the table: network, tokens, engine, seconds, MB."""
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([\w ]+) \| ([\d.]+) \| (\d+) \|", table, re.MULTILINE)
    return [(network, int(tokens), engine, float(ms) / 1000, int(size)) for network, tokens, engine, ms, size in rows]


def draw(table: str) -> str:
    """Return bars of seconds on the left and of memory on the right, for each network, length and engine."""
    rows = measured(table)
    slowest, largest = max(row[3] for row in rows), max(row[4] for row in rows)
    title = "A long text: seconds, and memory of the process (4 layers, 2 threads)"
    elements = [label(16, 25, title, "title")]
    y = 40
    shown = ("", 0)
    for network, tokens, engine, seconds, size in rows:
        if (network, tokens) != shown:
            shown = (network, tokens)
            elements.append(label(16, y + 16, f"{_NETWORKS[network]}, {tokens:,} tokens", "small title"))
            y += 22
        kind = "own" if engine.startswith("whiten") else "other"
        for left, part, words in ((130, seconds / slowest, f"{seconds:.1f} s"), (440, size / largest, f"{size:,} MB")):
            elements.append(bar(left, y, max(2.0, _HALF * part), 14, kind))
            elements.append(label(round(left + 6 + _HALF * part), y + 12, words, "small"))
        elements.append(label(122, y + 12, _ENGINES[engine], "small", "end"))
        y += _ROW
    return picture(title, _WIDTH, y + 12, elements)
